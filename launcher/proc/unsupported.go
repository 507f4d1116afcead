//go:build !linux

package proc

import (
	"context"
	"os"
	"runtime"
	"syscall"

	"github.com/shoal-ml/shoal/internal/group"
)

// This file stands in, on systems where jobs cannot run, for what the package does on Linux.

// Supported returns why this operating system cannot run jobs.
func Supported() error { return needsLinuxError(runtime.GOOS) }

// workerAttr gives a worker a process group of its own.
func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// awaitExit does nothing here: jobs need Linux.
func awaitExit(int) {}

// ignores knows nothing here: jobs need Linux.
func ignores(int, syscall.Signal) bool { return false }

// startOnCPUs runs start unbound: jobs need Linux.
func startOnCPUs(_ []int, start func() error) (bool, error) { return false, start() }

// Template is for Linux only. Its methods do nothing, so any goroutine may call them.
type Template struct{}

// StartTemplate is for Linux only.
func StartTemplate(*group.Group, Command, string, func(why string)) (*Template, error) {
	return nil, Supported()
}

// Stop does nothing here: jobs need Linux.
func (*Template) Stop() {}

// reapGroup does nothing here: jobs need Linux.
func (*Template) reapGroup(int) {}

// fork is a worker that a template has forked, on Linux only.
type fork struct {
	newChild
	pid   int
	bound bool
}

// fork is for Linux only.
func (*Template) fork(Command, []*os.File) (*fork, error) { return nil, Supported() }

// Sweep is for Linux only.
func Sweep(string) error { return Supported() }

// SweepGroup is for Linux only.
func SweepGroup(string, int) error { return Supported() }

// killGroup sends SIGKILL to a process group.
func killGroup(group int) { syscall.Kill(-group, syscall.SIGKILL) }

// ProcessState is for Linux only.
func ProcessState(int) byte { return 0 }

// Guard is for Linux only.
func (p *Place) Guard(context.Context, func(pid int)) error { return Supported() }
