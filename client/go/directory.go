package shmcast

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// DirVariable is the name of the environment variable for the directory of channels.
const DirVariable = "SHMCAST_DIR"

// ErrNoChannel is the error of a channel that does not exist.
var ErrNoChannel = errors.New("no such channel")

// DirError is the error of a directory of channels that belongs to another user.
type DirError struct{ Path string }

func (e *DirError) Error() string {
	return fmt.Sprintf("%s belongs to another user; set %s to a directory of your own", e.Path, DirVariable)
}

// NameError is the error of a name that no channel can have.
type NameError struct{ Name string }

func (e *NameError) Error() string {
	return fmt.Sprintf("%q cannot be a channel's name: 1 to 200 of A-Z a-z 0-9 . _ - : @ +, and none of . - first", e.Name)
}

func checkName(name string) error {
	isOurs := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-:@+", c)
	}
	if len(name) == 0 || len(name) > 200 || name[0] == '.' || name[0] == '-' ||
		strings.IndexFunc(name, func(c rune) bool { return !isOurs(c) }) >= 0 {
		return &NameError{name}
	}
	return nil
}

// directory finds the directory of channels (SPEC.md 4.1).
func directory(told string) (string, error) {
	if told != "" {
		return told, nil
	}
	if dir := os.Getenv(DirVariable); dir != "" {
		return dir, nil
	}
	const common = "/dev/shm/shmcast"
	const readAndEnter = 5
	if stat, err := os.Stat(common); err == nil && stat.IsDir() && stat.Sys().(*syscall.Stat_t).Uid == 0 &&
		syscall.Access(common, readAndEnter) == nil {
		return common, nil
	}
	own := fmt.Sprintf("/dev/shm/shmcast-%d", os.Geteuid())
	if stat, err := os.Lstat(own); err == nil {
		if owner := stat.Sys().(*syscall.Stat_t).Uid; owner != 0 && owner != uint32(os.Geteuid()) {
			return "", &DirError{own}
		}
	}
	return own, nil
}

// channelFiles is the open directory of one channel.
type channelFiles struct {
	path string
	dir  *os.File
}

func openChannel(dir, name string) (*channelFiles, error) {
	path := filepath.Join(dir, name)
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s; a publisher makes it, or set %s", ErrNoChannel, path, DirVariable)
	}
	if err != nil {
		return nil, err
	}
	return &channelFiles{path, file}, nil
}

// open opens an ordinary file of the channel. It follows no links.
func (c *channelFiles) open(name string, flags int, mode uint32) (*os.File, error) {
	return openBelow(c.dir, c.path, name, flags, mode)
}

func openBelow(dir *os.File, path, name string, flags int, mode uint32) (*os.File, error) {
	path = filepath.Join(path, name)
	flags |= syscall.O_NOFOLLOW | syscall.O_CLOEXEC | syscall.O_NONBLOCK
	fd, err := syscall.Openat(int(dir.Fd()), name, flags, mode)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	file := os.NewFile(uintptr(fd), path)
	if stat, err := file.Stat(); err != nil || flags&syscall.O_DIRECTORY == 0 && !stat.Mode().IsRegular() {
		file.Close()
		return nil, &fs.PathError{Op: "open", Path: path, Err: errors.New("not an ordinary file")}
	}
	return file, nil
}

// openSegment opens and checks the channel's segment. It also returns the metadata of the segment's file.
func (c *channelFiles) openSegment() (*segment, fs.FileInfo, error) {
	file, err := c.open("segment", os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: %s has no segment yet", ErrNoChannel, c.path)
	}
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, nil, err
	}
	segment, err := openSegment(file)
	return segment, info, err
}

// The kernel's locks of open files, which package syscall does not name.
const (
	ofdGetLock = 36
	ofdSetLock = 37
)

// isLocked says whether another open file holds a lock on file.
func isLocked(file *os.File) (bool, error) {
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	err := syscall.FcntlFlock(file.Fd(), ofdGetLock, &lock)
	return lock.Type != syscall.F_UNLCK, err
}

// reserve gives file this many bytes, and reserves their memory. A page without memory would kill the process at its first store.
func reserve(file *os.File, size int64) error {
	if err := syscall.Fallocate(int(file.Fd()), 0, 0, size); err != nil {
		return &fs.PathError{Op: "make", Path: file.Name(), Err: err}
	}
	return nil
}

// showPage makes a reader page that tools list as long as the returned file stays open (SPEC.md 4.1). remove removes the page's name.
func (c *channelFiles) showPage() (file *os.File, remove func(), err error) {
	path := filepath.Join(c.path, "readers")
	readers, err := os.OpenFile(path, os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, nil, err
	}
	var random [8]byte
	rand.Read(random[:])
	name := fmt.Sprintf("%d-%s", os.Getpid(), hex.EncodeToString(random[:]))
	hidden := "." + name
	gone := func(name string) { _ = syscall.Unlinkat(int(readers.Fd()), name) }
	file, err = openBelow(readers, path, hidden, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		readers.Close()
		return nil, nil, err
	}
	lock := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err = syscall.FcntlFlock(file.Fd(), ofdSetLock, &lock); err == nil {
		if err = file.Chmod(0o644); err == nil {
			err = reserve(file, headerBytes)
		}
	}
	if err == nil {
		err = syscall.Renameat(int(readers.Fd()), hidden, int(readers.Fd()), name)
	}
	if err != nil {
		gone(hidden)
		file.Close()
		readers.Close()
		return nil, nil, err
	}
	return file, func() { gone(name); file.Close(); readers.Close() }, nil
}
