//go:build !amd64 || shmcast_cgo

package publisher

/*
#cgo noescape publish
#cgo nocallback publish
#cgo noescape publish_all
#cgo nocallback publish_all
#include <shmcast.h>

typedef struct { int32_t code; uint64_t sequence; } published;

static published publish(shmcast_publisher *p, const uint8_t *data, size_t length, uint16_t tag, int32_t key) {
	published it = {0, 0};
	it.code = shmcast_publish_with(p, data, length, tag, key, &it.sequence);
	return it;
}

// The messages lie one after the other. Returns the number of published messages: all, or those before one that fails.
static size_t publish_all(shmcast_publisher *p, const uint8_t *data, const uint32_t *lengths, size_t count, uint16_t tag, int32_t key) {
	size_t done = 0;
	while (done < count && shmcast_publish_with(p, data, lengths[done], tag, key, NULL) == SHMCAST_OK) data += lengths[done++];
	return done;
}
*/
import "C"

import "unsafe"

// caller calls C by cgo. Many small messages are copied together first, for one call.
type caller struct {
	data    []byte
	lengths []C.uint32_t
}

func (c *caller) open() error { return nil }

func (c *caller) close() {}

// publish publishes a message. If it fails, it has published nothing.
func (c *caller) publish(p *C.shmcast_publisher, payload []byte, tag C.uint16_t, key C.int32_t) (sequence uint64, isDone bool) {
	it := C.publish(p, start(payload), C.size_t(len(payload)), tag, key)
	return uint64(it.sequence), it.code >= 0
}

// atOnce is the number of bytes of messages that one call passes to the C library.
const atOnce = 16 << 10

// publishAll returns the number of messages that it has published: all, or those before one that fails or that is large.
func (c *caller) publishAll(p *C.shmcast_publisher, payloads [][]byte, tag C.uint16_t, key C.int32_t) (done int) {
	for done < len(payloads) {
		c.data, c.lengths = c.data[:0], c.lengths[:0]
		for _, payload := range payloads[done:] {
			if len(c.data)+len(payload) > atOnce {
				break
			}
			c.data = append(c.data, payload...)
			c.lengths = append(c.lengths, C.uint32_t(len(payload)))
		}
		count := len(c.lengths)
		published := int(C.publish_all(p, start(c.data), unsafe.SliceData(c.lengths), C.size_t(count), tag, key))
		done += published
		if published < count || count == 0 {
			return done
		}
	}
	return done
}
