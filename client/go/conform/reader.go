//go:build !cgo

package main

var theWriter writer
