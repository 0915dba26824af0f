// Package publisher publishes messages to channels that package shmcast reads.
//
// It calls the C library, so it needs cgo, a C compiler, and the library: run client/c/install.sh PREFIX, and add PREFIX/lib/pkgconfig to
// $PKG_CONFIG_PATH. One goroutine at a time can use a Publisher.
package publisher
