package demo

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shoal-ml/shoal/examples/digits"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// The workers of the demo in Python. One goroutine runs what is here, that of the command; it
// writes files, and does not lock them.

// pythonWorkers returns the workers in Python. It fails if the interpreter does not find the
// packages that they need, and writes their scripts and data. It waits for the interpreter. It runs
// on the goroutine of the command, as all of this file.
func pythonWorkers(ctx context.Context, python string) ([]demoWorker, error) {
	env := cli.PythonEnv()
	if err := cli.CheckPython(ctx, python, env, "shoal", "numpy", "torch"); err != nil {
		return nil, err
	}
	dir, err := writeExamples()
	if err != nil {
		return nil, err
	}
	var workers []demoWorker
	for _, name := range []string{"numpy", "torch"} {
		workers = append(workers,
			demoWorker{name: name, command: []string{python, filepath.Join(dir, "audit.py"), name},
				env: env})
	}
	return workers, nil
}

// writeExamples writes the scripts and their data into a folder beside the directories of the runs,
// where people can read and copy them, and returns the folder.
func writeExamples() (dir string, err error) {
	root, err := runs.Root()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(filepath.Dir(root), "examples", "digits")
	return dir, fs.WalkDir(digits.Scripts, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := digits.Scripts.ReadFile(path)
		if err != nil {
			return err
		}
		file := filepath.Join(dir, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		return durable.Write(file, text) // another demo may be reading it at this moment
	})
}
