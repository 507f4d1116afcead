package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// How commands find a Python with what it needs. They call this on their own goroutine.

// PythonEnv returns the variables with which Python finds the package that belongs to this program;
// nil if there is none near. In a checkout this is bin/shoal and the package python/shoal, in a
// wheel the program lies inside the package. It looks for the files, and the caller may alter the
// map.
func PythonEnv() map[string]string {
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

// CheckPython runs the interpreter with env added to the environment, waits for it, and fails if it
// does not find one of the packages.
func CheckPython(ctx context.Context, python string, env map[string]string,
	packages ...string) error {
	const probe = "import sys, importlib.util; " +
		"print(*[m for m in sys.argv[1:] if not importlib.util.find_spec(m)])"
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
