//go:build !shmcast_cgo

package publisher

// #include <shmcast.h>
import "C"

import (
	"unsafe"

	"shmcast/internal/cstack"
)

// caller calls C without the scheduler, which costs a third of a call by cgo. Programs built with the tag shmcast_cgo use cgo.
type caller struct{ stack *cstack.Stack }

func (c *caller) open() (err error) {
	c.stack, err = cstack.New()
	return err
}

func (c *caller) close() {
	if c.stack != nil {
		_ = c.stack.Close()
		c.stack = nil
	}
}

// publish publishes a message. If it fails, it has published nothing.
func (c *caller) publish(p *C.shmcast_publisher, payload []byte, tag C.uint16_t, key C.int32_t) (sequence uint64, isDone bool) {
	code := c.stack.Call(unsafe.Pointer(C.shmcast_publish_with), unsafe.Pointer(p), unsafe.Pointer(start(payload)),
		uintptr(len(payload)), uintptr(tag), uintptr(key), unsafe.Pointer(&sequence))
	return sequence, code >= 0
}

// publishAll returns the number of messages that it has published: all, or those before one that fails.
func (c *caller) publishAll(p *C.shmcast_publisher, payloads [][]byte, tag C.uint16_t, key C.int32_t) int {
	for i, payload := range payloads {
		if _, isDone := c.publish(p, payload, tag, key); !isDone {
			return i
		}
	}
	return len(payloads)
}
