package pools

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/nats"
)

// The folder of the files of a pool. The functions make and read it, on the goroutine of the
// command, and keep nothing; openRecord waits for the store, and its caller closes that.

// folderError returns the error of a folder or a file of a pool that cannot be used.
func folderError(err error) error {
	return fmt.Errorf("the files of the pool: %w; set XDG_STATE_HOME to a folder of yours that "+
		"has room", err)
}

// makePoolFolder returns the folder of the files of a pool, which it makes.
func makePoolFolder(name string) (string, error) {
	root, err := runs.Root()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(filepath.Dir(root), "pools", name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", folderError(err)
	}
	return dir, nil
}

// remember writes a text into a file of the folder of a pool, in place of what it held; where that
// fails, the file is as it was.
func remember(dir, file, text string) error {
	return durable.WriteSecret(filepath.Join(dir, file), []byte(text))
}

// hostFile is the file in the folder of a pool that has the name of this host there.
const hostFile = "host"

// hostName returns the name of this host in a pool, which it has for good: its jobs are known under
// that name. given is the one of the command line; "" = as before, or the host's own.
func hostName(dir, pool, given string) (string, error) {
	path := filepath.Join(dir, hostFile)
	text, err := os.ReadFile(path)
	known := strings.TrimSpace(string(text))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", folderError(err)
	case known != "" && given != "" && given != known:
		return "", cli.Usagef("--name %s: this host is called %s in the pool %s, where its jobs "+
			"are known under that name: leave --name out", given, known, pool)
	case known != "":
		return known, nil
	}
	return cli.HostName(given), nil
}

// openRecord opens the record of a pool in its folder, and makes it where there is none. It tells
// people where one that was there has lost the pool.
func openRecord(ctx context.Context, dir, name string, notes io.Writer) (store.Store, error) {
	path := filepath.Join(dir, "record")
	_, first := os.Stat(path)
	_, never := os.Stat(filepath.Join(dir, hostFile))
	record, err := nats.Open(path)
	if err != nil || first != nil || never != nil {
		return record, err
	}
	if _, err := record.Get(ctx, pool.PoolKey(name)); errors.Is(err, store.ErrNotFound) {
		fmt.Fprintf(notes, "shoal: WARNING: the record in %s has nothing of pool %s, which was "+
			"kept here before: the jobs that it knew are lost, as where a disk fails; shoal ps "+
			"shows those that still run\n", path, name)
	}
	return record, nil
}
