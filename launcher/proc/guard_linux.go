package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// The guard of a run: a process that waits until the launcher is gone, and ends what is left of the
// run. It is this program, started under another name.

// guardName is the name of a guard in process listings, by which this program knows that it was
// started as a guard.
const guardName = "shoal-guard"

// maxGuards bounds how often a guard is replaced: a guard that somebody kills is replaced, and a
// guard that cannot run is an error.
const maxGuards = 100

// A program that links this package turns into a guard when it is started under that name. This
// stands in an init, and not in a function that every main and TestMain would have to call, because
// forgetting the call would start the whole program again and again.
func init() {
	if len(os.Args) != 2 || os.Args[0] != guardName {
		return
	}
	// SIGABRT and the like are not ignored: they are sent on purpose, and Guard starts a new guard.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	if err := takeOverPlace(os.Args[1], syscall.LOCK_EX); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Guard keeps a guard process alive until ctx ends, and replaces one that ends early; then it kills
// the guard. A guard waits for the lock of the place, which it gets when the launcher is dead, and
// clears the place then. Guard blocks meanwhile, on a goroutine of its own. started, which may be
// nil, is called there with the number of each guard process once that runs.
func (p *Place) Guard(ctx context.Context, started func(pid int)) error {
	for range maxGuards {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Args = []string{guardName, p.lockPath()}
		// no mark of a run: a sweep of an outer one must leave the guard to its work
		cmd.Env = []string{}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return guardStartError(ctx, err)
		}
		if started != nil {
			started(cmd.Process.Pid)
		}
		err := cmd.Wait()
		if ctx.Err() != nil {
			return nil
		}
		if err == nil {
			return errors.New(
				"proc: the guard took over while its launcher lives; was the lock file removed?")
		}
	}
	return fmt.Errorf("proc: %d guards in a row ended early; can %s be opened and locked?",
		maxGuards, p.lockPath())
}

// guardStartError is the error of a guard that cannot be started; nil if ctx has ended.
func guardStartError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("proc: the guard process cannot be started: %w", err)
}
