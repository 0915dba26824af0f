package shmcast

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// lookEvery is the pause between two checks of a segment's name. A check costs a system call.
const lookEvery = time.Second

// named is the name of a segment that is a file, or of a gate's page. After somebody removed or moved the channel, or mounted another file system over it, the
// name leads elsewhere. Then new readers do not find the segment, and the next publisher makes another channel.
type named struct {
	path   string
	file   fs.FileInfo // the file that had the name
	root   fs.FileInfo // the root directory in which the path was found
	looked time.Time
	isLost bool
}

// nameOf is the name of a file; nil if it cannot be known.
func nameOf(path string, file fs.FileInfo) *named {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil
	}
	root, err := os.Stat("/")
	if err != nil {
		return nil
	}
	return &named{path: path, file: file, root: root, looked: time.Now()}
}

// look says whether the name no longer leads to the file. With isTime it checks at most once in lookEvery.
func (n *named) look(isTime bool) bool {
	if now := time.Now(); isTime && now.Sub(n.looked) >= lookEvery {
		n.looked, n.isLost = now, n.leadsElsewhere()
	}
	return n.isLost
}

func (n *named) leadsElsewhere() bool {
	found, err := os.Stat(n.path)
	if err == nil && os.SameFile(found, n.file) || err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) {
		return false
	}
	// After a change of the root directory, the path says nothing.
	root, err := os.Stat("/")
	return err == nil && os.SameFile(root, n.root)
}
