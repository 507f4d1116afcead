package cli

import (
	"context"
	"strings"

	"github.com/shoal-ml/shoal/job"
)

// What commands that take a job read of it. They do so on their own goroutine.

// LoadSpec reads the job of the file that --file names; of "", which is none, it returns the zero
// Spec. A signal that ends ctx meanwhile ends the process.
func LoadSpec(ctx context.Context, file string) (job.Spec, error) {
	if file == "" {
		return job.Spec{}, nil
	}
	defer ExitOnSignal(ctx)()
	return job.Load(file)
}

// ParseEnv returns the values of --env, which are NAME=VALUE, by name.
func ParseEnv(pairs []string) (map[string]string, error) {
	env := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if pair == "" {
			return nil, Usagef("--env %q names no variable; write --env NAME=VALUE", pair)
		}
		if !ok {
			return nil, Usagef("--env %s has no value; write --env %[1]s=VALUE", pair)
		}
		env[name] = value
	}
	return env, nil
}
