package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shoal-ml/shoal/internal/durable"
)

// RefuseSame fails where two files are one. Of each pair it takes what the first is and its path,
// and the same of the second.
func RefuseSame(pairs [][4]string) error {
	for _, x := range pairs {
		if isOneFile(x[1], x[3]) {
			return Usagef("%s and %s are both %s: choose another name for what is written",
				x[0], x[2], x[3])
		}
	}
	return nil
}

// isOneFile reports whether two paths are those of one file, which need not be there yet; "" is
// none. It asks the file system.
func isOneFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, err := os.Stat(a)
	y, other := os.Stat(b)
	if errors.Join(err, other) != nil {
		return filepath.Clean(a) == filepath.Clean(b)
	}
	return os.SameFile(x, y)
}

// CheckOutput is CheckPlace for a file that durable.Write is to write, which replaces no device and
// no link.
func CheckOutput(flag, path string) error {
	if err := CheckPlace(flag, path); err != nil {
		return err
	}
	if there, err := os.Lstat(path); path != "" && err == nil && !there.Mode().IsRegular() {
		return Usagef("%s %s is no regular file: name another one to write", flag, path)
	}
	return nil
}

// CheckPlace fails where no file can be made at the path that a flag names; "" is none. It asks
// the file system, so that a command can refuse the path before it does its work.
func CheckPlace(flag, path string) error {
	if path == "" {
		return nil
	}
	switch there, err := os.Stat(path); {
	case err == nil && there.IsDir():
		return Usagef("%s %s is a folder: name a file in it", flag, path)
	case err == nil:
		return nil
	}
	folder := filepath.Dir(path)
	if there, err := os.Stat(folder); err != nil || !there.IsDir() {
		return Usagef("%s %s: there is no folder %s that you may use: make it, or name a file "+
			"elsewhere", flag, path, folder)
	}
	return nil
}

// ReadFile reads a file that the command line names, of up to most bytes, and returns its text and
// what parse makes of it. Its errors are about the command line, also where there is no such file.
func ReadFile[T any](path string, most int64, parse func([]byte) (T, error)) (text []byte, value T,
	err error) {
	if text, err = durable.Read(path, most); err != nil {
		return nil, value, AsUsage(err)
	}
	if value, err = parse(text); err != nil {
		return nil, value, AsUsage(fmt.Errorf("%s: %w", path, err))
	}
	return text, value, nil
}

// CheckFolder fails where a flag names something else than a folder that is there; "" is none. It
// asks the file system.
func CheckFolder(flag, path string) error {
	if path == "" {
		return nil
	}
	switch there, err := os.Stat(path); {
	case errors.Is(err, fs.ErrNotExist):
		return Usagef("%s %s: there is no such folder", flag, path)
	case err != nil:
		return Usagef("%s: %v", flag, err)
	case !there.IsDir():
		return Usagef("%s %s is no folder", flag, path)
	}
	return nil
}

// CheckNewFolder fails where a flag names what is no folder, and where none can be made with those
// above it; "" is none. It asks the file system.
func CheckNewFolder(flag, path string) error {
	for at := path; at != ""; at = filepath.Dir(at) {
		there, err := os.Stat(at)
		switch {
		case err == nil && !there.IsDir():
			return Usagef("%s %s: %s is no folder: name another", flag, path, at)
		case err == nil || at == filepath.Dir(at):
			return nil
		}
	}
	return nil
}

// CheckNewOutput is CheckOutput, and fails also where something is at the path, unless force says
// that it may be replaced.
func CheckNewOutput(flag, path string, force bool) error {
	if err := CheckOutput(flag, path); err != nil {
		return err
	}
	if _, err := os.Lstat(path); path != "" && err == nil && !force {
		return Usagef("%s %s is there already: choose another name, or replace it with --force",
			flag, path)
	}
	return nil
}
