//go:build !linux

package proc

import (
	"context"
	"errors"
	"runtime"
	"syscall"
)

// Supported reports whether this operating system can run jobs.
func Supported() error {
	return errors.New("shoal run needs Linux, and this is " + runtime.GOOS + ": memfd segments, eventfd bells and parent-death signals " +
		"are missing here, so workers could neither share memory nor be kept from outliving a job\n" +
		"  what works here: shoal version, checking a job spec (shoal run --dry-run -f job.yaml), and a training script\n" +
		"  on its own (python3 train.py is a job of one)\n" +
		"  what to do: run the job on a Linux machine, or in a Linux container on this one")
}

func workerAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func awaitExit(int) {}

// Sweep is for Linux only.
func Sweep(string) error { return Supported() }

// Guard is for Linux only.
func (p *Place) Guard(context.Context, func(pid int)) error { return Supported() }
