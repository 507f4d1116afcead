package cli

import (
	"errors"
	"os"
	"path/filepath"
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
