package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/shoal-ml/shoal/examples/digits"
	"github.com/shoal-ml/shoal/launcher"
)

// pythonDemo returns the workers in Python, after a look whether the interpreter has what they
// need.
func pythonDemo(ctx context.Context, python string) ([]demoWorker, error) {
	env := pythonEnv()
	if err := checkPython(ctx, python, env, "shoal", "numpy", "torch"); err != nil {
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

// pythonEnv lets Python find the package that belongs to this program: in a checkout this is
// bin/shoal and the package python/shoal, in a wheel the program lies inside the package.
func pythonEnv() map[string]string {
	self, err := os.Executable()
	if err != nil {
		return nil
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	for _, dir := range []string{filepath.Join(self, "../../python"),
		filepath.Join(self, "../../..")} {
		if _, err := os.Stat(filepath.Join(dir, "shoal", "__init__.py")); err == nil {
			path := append([]string{dir}, filepath.SplitList(os.Getenv("PYTHONPATH"))...)
			return map[string]string{"PYTHONPATH": strings.Join(path, string(os.PathListSeparator))}
		}
	}
	return nil
}

// checkPython asks the interpreter which of the packages it cannot find.
func checkPython(ctx context.Context, python string, env map[string]string,
	packages ...string) error {
	const probe = `import sys, importlib.util; print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])`
	cmd := exec.CommandContext(ctx, python, append([]string{"-c", probe}, packages...)...)
	cmd.Env = os.Environ()
	for key, value := range env {
		cmd.Env = append(cmd.Env, key+"="+value)
	}
	answer, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("%s does not work as Python: %w; install Python 3.9 or newer, or name "+
			"one with --python=PATH", python, err)
	}
	missing := strings.Fields(string(answer))
	switch {
	case len(missing) == 0:
		return nil
	case missing[0] == "shoal":
		return fmt.Errorf("%s does not find the package shoal: install shoal's wheel there, or "+
			"name another Python with --python=PATH", python)
	}
	return fmt.Errorf("%s has no %s: install it with `%s -m pip install %s`, or name another "+
		"Python with --python=PATH",
		python, strings.Join(missing, " and no "), python, strings.Join(missing, " "))
}

// writeExamples puts the scripts and their data beside the directories of the runs, where they can
// be read and copied.
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

// replaceFile writes a file that another demo may be reading at this moment.
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
