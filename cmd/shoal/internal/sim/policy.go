package sim

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/launcher/policies"
)

// shoal sim --policy: the policies that a scenario is played with. One goroutine runs what is here,
// that of the command, so nothing is locked.

// answerTime is how long a policy of a user may take for a decision. No job waits for it, and what
// comes must not depend on how busy this machine is, so it is longer than beside a job.
const answerTime = 10 * time.Second

// checkPolicies returns what is wrong with the policies of o, at whose files it looks; nil =
// nothing. It waits for Python where there is one in Python.
func (o *options) checkPolicies(cmd *cobra.Command) error {
	if len(o.policy) > 0 && o.dir != "" {
		return cli.Usagef("--run plays a job by what its steps took, and no policy decides: " +
			"write the scenario that it prints into a file, and give that to shoal sim with " +
			"--policy")
	}
	inPython := false
	for i, path := range o.policy {
		if path == "" {
			return cli.Usagef("--policy is empty: name the file of a policy, or leave it out")
		}
		if slices.Contains(o.policy[:i], path) {
			return cli.Usagef("--policy %s is given twice: leave one out", path)
		}
		if policy.Named(path) != nil {
			continue
		}
		if err := policies.CheckFile(path); err != nil {
			return cli.Usagef("--policy %v; policies of shoal are %s%s", err,
				strings.Join(policy.Names(), ", "), spelling.Meant(path, policy.Names()))
		}
		if strings.HasSuffix(path, ".py") {
			err := cli.CheckPython(cmd.Context(), o.python, cli.PythonEnv(), "shoal")
			if err != nil {
				return err
			}
			inPython = true
		}
	}
	if !inPython {
		return cli.RefuseFlags(cmd.Flags(), "a policy in Python, which --policy names by its file",
			"python")
	}
	return nil
}

// startPolicies starts the policies of o, and waits until they run. The caller calls stop, which
// ends them and waits for that.
func (o *options) startPolicies() (list []decide.Policy, stop func(), err error) {
	g := group.New(o.programs.Context())
	end := func() {
		g.Stop(nil)
		_ = g.Wait() // programs return no error
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	env := os.Environ()
	for name, value := range cli.PythonEnv() {
		env = append(env, name+"="+value)
	}
	owner := map[string]string{} // of levers
	for _, path := range o.policy {
		var p decide.Policy = policy.Named(path)
		if p == nil {
			p, err = policies.Start(g, policies.Command(path, o.python), env, answerTime, os.Stderr)
			if err != nil {
				return nil, nil, fmt.Errorf("--policy: %w", err)
			}
		}
		for _, lever := range p.Levers() {
			if other := owner[lever]; other != "" && other != path {
				return nil, nil, cli.Usagef("--policy %s and %s both decide about the %s: leave "+
					"one out", path, other, lever)
			}
			owner[lever] = path
		}
		list = append(list, p)
	}
	o.programs.Go("policies of a scenario", func(context.Context) error { return g.Wait() })
	return list, end, nil
}

// endPrograms ends what runs policies, and waits for that.
func (o *options) endPrograms() {
	o.programs.Stop(nil)
	_ = o.programs.Wait()
}
