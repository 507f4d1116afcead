package keeper

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/pool"
)

// What the machine of a pool must know of a job, made from the request of a tool, on the goroutine
// of that request. The functions in this file are pure.

// submission returns what the machine must know of a job that somebody asks for. The error is a
// *job.Error or a *pool.UsageError.
func (q *Request) submission() (pool.Submission, error) {
	spec, err := job.Parse([]byte(q.Spec))
	if err != nil {
		return pool.Submission{}, err
	}
	spec = spec.WithDefaults()
	if err := spec.Validate(); err != nil {
		return pool.Submission{}, err
	}
	switch {
	case !filepath.IsAbs(q.Dir):
		return pool.Submission{}, &pool.UsageError{Msg: "dir: the folder of the command is not a " +
			"whole path"}
	case spec.Spares > 0:
		return pool.Submission{}, &job.Error{Key: "spares", Msg: "a pool gives a job other slots " +
			"when workers are lost, so it keeps no spares: leave the key out"}
	case spec.Grow:
		return pool.Submission{}, &job.Error{Key: "grow", Msg: "a pool gives a job more slots " +
			"when some are free: leave the key out, and say with max how many it can use"}
	}
	env, err := environment(q.Env)
	if err != nil {
		return pool.Submission{}, err
	}
	s := pool.Submission{Name: spec.Name, Spec: spec.String(), Dir: q.Dir,
		Env: env, Who: q.Who, Kind: kind(spec.Command),
		Min: cmp.Or(spec.Min, spec.Workers), Asked: spec.Workers,
		Max: min(cmp.Or(spec.Max, spec.Workers), job.MaxWorkers)} // more no launcher takes
	if c := spec.Schedule; c != nil {
		after, err := c.DeadlineAfter()
		if err != nil {
			return pool.Submission{}, err
		}
		s.Tenant, s.Priority, s.Deadline = c.Tenant, c.Priority, after.Milliseconds()
		s.Value, s.Budget, s.Steps, s.Sizes = c.Value, c.Budget, c.Steps, c.Sizes
		if s.Preempt = string(c.Preempt); s.Preempt == "" {
			s.Preempt = "shrink"
		}
	}
	return s, nil
}

// kind returns a short text that is the same for commands that differ only in a seed, by which the
// pool knows jobs alike.
func kind(command []string) string {
	var words []string
	skip := false
	for _, word := range command {
		flag, _, assigned := strings.Cut(word, "=")
		switch {
		case skip:
			skip = false
		case strings.HasPrefix(flag, "-") && strings.HasSuffix(flag, "seed"):
			skip = !assigned
		default:
			words = append(words, word)
		}
	}
	text, _ := json.Marshal(words) // texts
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// ofHost are variables that a job has from the keeper of each of its hosts, and not from who
// submits it: where sockets are, and which GPUs of the host the pool has.
var ofHost = []string{"XDG_RUNTIME_DIR", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
	"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}

// environment returns the variables of who submits that a job gets: not those that shoal or the
// session of a terminal sets, or that are the host's. An entry that is no variable is a
// *pool.UsageError.
func environment(env []string) ([]string, error) {
	kept := []string{}
	for _, variable := range env {
		name, _, ok := strings.Cut(variable, "=")
		switch {
		case !ok || strings.ContainsRune(variable, 0):
			return nil, &pool.UsageError{Msg: fmt.Sprintf("env: %.100q is no variable; write "+
				"KEY=VALUE, without a NUL byte", variable)}
		case name != "" && name != "_" && !slices.Contains(ofHost, name) && !job.SetByShoal(name):
			kept = append(kept, variable)
		}
	}
	return kept, nil
}

// ofSlurm begin the names of the variables in which Slurm says what it has started. A keeper, or a
// job that is submitted, may be a task of Slurm; a job of the pool is none, and would take itself
// for that task.
var ofSlurm = []string{"SLURM_", "SLURMD_", "PMI_", "PMIX_"}

// withoutSlurm returns the variables of an environment that do not say what Slurm has started, in
// memory of its own. SLURM_CONF says where Slurm is.
func withoutSlurm(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(variable string) bool {
		return !strings.HasPrefix(variable, "SLURM_CONF=") &&
			slices.ContainsFunc(ofSlurm, func(prefix string) bool {
				return strings.HasPrefix(variable, prefix)
			})
	})
}
