// Package publisher publishes messages to channels that package shmcast reads.
//
// It calls the C library, so it needs cgo, a C compiler, and the library: client/c/install.sh PREFIX, and PREFIX/lib/pkgconfig in
// $PKG_CONFIG_PATH. One goroutine at a time uses a Publisher.
package publisher
