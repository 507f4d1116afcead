package demo

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/shoal-ml/shoal/examples/digits"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/launcher"
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
	runs, err := launcher.RunsDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(filepath.Dir(runs), "examples", "digits")
	return dir, fs.WalkDir(digits.Scripts, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := digits.Scripts.ReadFile(path)
		if err != nil {
			return err
		}
		return replaceFile(filepath.Join(dir, filepath.FromSlash(path)), text)
	})
}

// replaceFile writes a file with one rename, since another demo may be reading it at this moment.
// It makes the folder where that is missing.
func replaceFile(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
