// Package rundir says where the sockets of running jobs lie, for launchers, which make them, and
// for tools, which look for them.
package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// ControlSuffix ends the names of the sockets in Path on which launchers answer tools.
const ControlSuffix = ".ctl"

// Variable names the folder in which the keeper of a pool looks for the jobs that it starts, which
// have the environment of who submits them: the folder for temporary files may be another one.
const Variable = "SHOAL_RUNTIME_DIR"

// IsPath reports whether what a user has given as a job is the path of the directory of its run: no
// name of a job has a slash, or is a dot or two. It is pure.
func IsPath(text string) bool {
	return strings.ContainsRune(text, filepath.Separator) || text == "." || text == ".."
}

// Path returns the folder of the sockets and locks of the running jobs of this user. It is the one
// that Variable names, or lies in XDG_RUNTIME_DIR where there is one, else in the folder for
// temporary files. Path makes it when it is missing, and fails when anybody else could reach into
// it. Any goroutine may call it.
func Path() (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("shoal-%d", os.Getuid()))
	if xdg := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(xdg) {
		if info, err := os.Stat(xdg); err == nil && info.IsDir() {
			dir = filepath.Join(xdg, "shoal")
		}
	}
	if given := os.Getenv(Variable); filepath.IsAbs(given) {
		dir = given
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf(
			"rundir: a directory for sockets: %w; set XDG_RUNTIME_DIR to a folder of yours", err)
	}
	return dir, checkPrivate(dir)
}

// List returns the paths in Path whose names begin and end so, in the order of their names. It
// makes the folder as Path does.
func List(prefix, suffix string) (paths []string, err error) {
	dir, err := Path()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("rundir: %w", err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) && strings.HasSuffix(e.Name(), suffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// CheckSocket fails for a path that is too long for that of a Unix socket. It is pure.
func CheckSocket(path string) error {
	const most = 103 // without the NUL
	if len(path) > most {
		return fmt.Errorf("rundir: the socket path %s has %d bytes, but the kernel takes %d; set "+
			"XDG_RUNTIME_DIR to a folder with a shorter path", path, len(path), most)
	}
	return nil
}

// Environ returns the environment of this process for the programs of a job, which is without
// Variable: a job that such a program runs lies where it would have without the pool.
func Environ() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, Variable+"=")
	})
}

// checkPrivate fails unless dir is a folder of this user that nobody else can use. It looks at the
// folder, and changes nothing.
func checkPrivate(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("rundir: %w", err)
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	why := ""
	switch {
	case !info.IsDir():
		why = "it is not a directory"
	case owner != os.Getuid():
		why = fmt.Sprintf("it belongs to user %d", owner)
	case info.Mode().Perm()&0o077 != 0:
		why = fmt.Sprintf("its mode is %04o", info.Mode().Perm())
	default:
		return nil
	}
	return fmt.Errorf(
		"rundir: %s is not private: %s, so others could take over the socket of a job; "+
			"remove it or make it 0700, or set XDG_RUNTIME_DIR to a folder of yours", dir, why)
}
