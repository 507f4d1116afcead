package proc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// The functions in this file find the program of a command, and put into words why there is none
// that can be started. They keep nothing, and read the disk only to look at files.

// CommandError says why a command cannot be started.
type CommandError struct {
	Command string // first word of the command line
	Msg     string // why, and what to do
}

// Error says which command cannot be run, and why.
func (e *CommandError) Error() string { return fmt.Sprintf("cannot run %q: %s", e.Command, e.Msg) }

// Lookup finds the file of a command as a shell would: a name with a slash is a path, another is
// searched in the folders of path (the PATH of the worker, not ours). Its errors are *CommandError.
func Lookup(command, path string) (string, error) {
	if strings.Contains(command, "/") {
		if err := checkExecutable(command); err != nil {
			return "", &CommandError{command, notExecutableText(err, command)}
		}
		return filepath.Abs(command)
	}
	var blocked string
	for _, dir := range filepath.SplitList(path) {
		file := filepath.Join(dir, command)
		err := checkExecutable(file)
		if err == nil {
			return filepath.Abs(file)
		}
		if errors.Is(err, fs.ErrPermission) && blocked == "" {
			blocked = file
		}
	}
	if blocked != "" {
		return "", &CommandError{command, notExecutableText(fs.ErrPermission, blocked)}
	}
	msg := "no such command in PATH; check the spelling, or give its path"
	if checkExecutable(command) == nil || errors.Is(checkExecutable(command), fs.ErrPermission) {
		msg = fmt.Sprintf("no such command in PATH, but a file of that name lies here; write ./%s",
			command)
	}
	return "", &CommandError{command, msg}
}

// checkExecutable returns why a file cannot be executed; nil = it can.
func checkExecutable(file string) error {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return err
	case info.IsDir():
		return syscall.EISDIR
	case info.Mode().Perm()&0o111 == 0:
		return fs.ErrPermission
	}
	return nil
}

// notExecutableText says in words why a file cannot be executed, which err of checkExecutable says,
// and what to do.
func notExecutableText(err error, file string) string {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "no such file; check the path"
	case errors.Is(err, syscall.EISDIR):
		return "it is a folder; name the program inside it"
	case errors.Is(err, fs.ErrPermission) && strings.HasSuffix(file, ".py"):
		return fmt.Sprintf("%s is not executable; run it with python3 %s, or chmod +x it", file,
			file)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("%s is not executable; chmod +x it if it is a program", file)
	}
	return err.Error()
}

// startError returns a *CommandError that explains why the kernel refused to start a file that
// Lookup had found.
func startError(command string, err error) error {
	msg := err.Error()
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		msg = "it is neither a program for this machine nor a script with a #! line; put its " +
			"interpreter before it"
	case errors.Is(err, fs.ErrNotExist):
		msg = "its interpreter, named in its first line after #!, is missing; install it or " +
			"correct the line"
	case errors.Is(err, syscall.E2BIG):
		msg = "its arguments and environment are longer than the kernel takes; put them into a file"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		msg = "no more files can be open; start fewer workers or raise ulimit -n"
	case errors.Is(err, syscall.EAGAIN):
		msg = "no more processes are allowed; start fewer workers or raise ulimit -u"
	}
	return &CommandError{command, msg}
}
