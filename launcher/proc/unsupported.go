//go:build !linux

package proc

import (
	"context"
	"runtime"
	"syscall"
)

// Supported reports whether this operating system can run jobs.
func Supported() error { return needsLinux(runtime.GOOS) }

func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func awaitExit(int) {}

func onCPUs(_ []int, start func() error) (bool, error) { return false, start() }

// Sweep is for Linux only.
func Sweep(string) error { return Supported() }

// SweepGroup is for Linux only.
func SweepGroup(string, int) error { return Supported() }

// State is for Linux only.
func State(int) byte { return 0 }

// Guard is for Linux only.
func (p *Place) Guard(context.Context, func(pid int)) error { return Supported() }
