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

// guardName is what a guard is called in process listings, and how this program knows that it is
// one.
const guardName = "shoal-guard"

// maxGuards bounds how often a guard is replaced: a hand that kills it is met, a guard that cannot
// live is an error.
const maxGuards = 100

// A program that links this package turns into a guard when it is started under that name. This
// stands in an init, and not in a function that every main and TestMain would have to call, because
// forgetting the call would start the whole program again and again.
func init() {
	if len(os.Args) != 2 || os.Args[0] != guardName {
		return
	}
	// Not listed is SIGABRT and its like: who sends these means it, and is answered with a new
	// guard.
	signal.Ignore(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1,
		syscall.SIGUSR2)
	if err := takeOver(os.Args[1], syscall.LOCK_EX); err != nil {
		os.Exit(1)
	}
	os.Exit(0)
}

// Guard keeps a guard process alive until ctx ends, then ends it. started, which may be nil, is
// told each new process number once that process runs.
func (p *Place) Guard(ctx context.Context, started func(pid int)) error {
	for range maxGuards {
		cmd := exec.CommandContext(ctx, "/proc/self/exe")
		cmd.Args = []string{guardName, p.lockPath()}
		// no mark of a run: a sweep of an outer one must leave the guard to its work
		cmd.Env = []string{}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return startFault(ctx, err)
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

func startFault(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("proc: the guard process cannot be started: %w", err)
}
