package kubelet

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/shoal-ml/shoal/internal/group"
)

// Program is a program that runs beside a test. StartProgram and KeepProgram make one, and End ends
// it.
type Program struct {
	log  *os.File
	ends *group.Group
	make func() *exec.Cmd

	mu    sync.Mutex // guards what follows
	cmd   *exec.Cmd  // that runs, or ran last
	ended bool       // End was called
}

// StartProgram starts a program with additions to the environment, and its output in a file of a
// folder.
func StartProgram(dir, program string, env []string, args ...string) (*Program, error) {
	return startProgram(dir, false, program, env, args)
}

// KeepProgram does the same, and starts it again whenever it ends, as a Deployment does.
func KeepProgram(dir, program string, env []string, args ...string) (*Program, error) {
	return startProgram(dir, true, program, env, args)
}

// startProgram is StartProgram, or KeepProgram if again.
func startProgram(dir string, again bool, program string, env, args []string) (*Program, error) {
	log, err := os.OpenFile(filepath.Join(dir, filepath.Base(program)+".log"),
		os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	p := &Program{log: log, ends: group.New(context.Background()), make: func() *exec.Cmd {
		cmd := exec.Command(program, args...)
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), log, log
		return cmd
	}}
	if err := p.start(); err != nil {
		log.Close()
		return nil, err
	}
	p.ends.Go(program, func(context.Context) error {
		for {
			err := p.cmd.Wait()
			if !again {
				return err
			}
			if err := p.start(); err != nil {
				return err
			}
		}
	})
	return p, nil
}

// errEnded says that a program is not started again because its end is wanted.
var errEnded = errors.New("the program was ended")

// start starts the program, unless End was called.
func (p *Program) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return errEnded
	}
	p.cmd = p.make()
	return p.cmd.Start()
}

// Kill kills the process. One of KeepProgram is started again.
func (p *Program) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.cmd.Process.Kill() // it may have ended by itself
}

// End asks the program to end, and waits for that.
func (p *Program) End() {
	p.mu.Lock()
	p.ended = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // as with Kill
	p.mu.Unlock()
	_ = p.ends.Wait() // how it has ended does not matter
	p.log.Close()
}

// Tail returns the end of the output.
func (p *Program) Tail() string { return tail(p.log.Name()) }

// tail returns the end of a file.
func tail(path string) string {
	text, _ := os.ReadFile(path)
	return string(text[max(0, len(text)-4000):])
}
