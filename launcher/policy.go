package launcher

import (
	"fmt"
	"os"
	"slices"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/policies"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// The policies that decide about the job of a launcher. run calls startPolicyLoop where the job
// begins here, and a task where this host joins; the agent has the policies started when it comes
// to lead.

// startPolicyLoop has policies decide about the job while this host leads it, if the spec says so.
// It is called once, and does not wait.
func (l *launcher) startPolicyLoop(spec job.Spec) {
	modes := map[job.Auto]act.Mode{job.AutoAct: act.Auto, job.AutoWatch: act.Watch}
	mode, is := modes[spec.Auto]
	if !is {
		return
	}
	if spec.Auto == job.AutoAct &&
		slices.Contains(spec.Policies, policy.KungFuBatch{}.Name()) { // its other rule
		l.agent.FollowKungFu()
	}
	var users func(g *group.Group) []decide.Policy // nil where there are none: nothing begins anew
	if len(spec.Policies) > 0 || spec.Budget > 0 {
		users = func(g *group.Group) []decide.Policy { return l.startPolicies(g, spec) }
	}
	l.agent.DecideBy(mode, users)
}

// startPolicies starts the policies that a job names, those of users as goroutines of g, whose end
// ends them, and marked as part of the run, so that the guard ends them when this launcher is
// killed. It returns those that run. One that cannot run is told to people, and the job goes on
// without it. It waits for the programs, on a goroutine that does nothing else.
func (l *launcher) startPolicies(g *group.Group, spec job.Spec) (list []decide.Policy) {
	env := os.Environ()
	for name, value := range spec.Env {
		env = append(env, name+"="+value)
	}
	env = append(env, proc.RunVariable+"="+l.place.Mark())
	if spec.Budget > 0 {
		list = append(list, policy.Budget{Epoch: spec.Budget, Price: spec.Price})
	}
	for _, path := range spec.Policies {
		if own := policy.Named(path); own != nil {
			list = append(list, own)
			continue
		}
		command, err := policyCommand(spec, path)
		if err == nil {
			var p *policies.Program
			p, err = policies.Start(g, command, env, policies.AnswerTime, l.cfg.Stderr)
			if err == nil {
				list = append(list, p)
			}
		}
		if err != nil {
			l.console.Note(fmt.Sprintf("%v; the job goes on without it", err))
		}
	}
	return list
}

// policyCommand returns the words that run the policy in a file, in Python with the interpreter of
// the job, as the workers have it. It looks at files.
func policyCommand(spec job.Spec, path string) ([]string, error) {
	if err := policies.CheckFile(path); err != nil {
		return nil, fmt.Errorf("the policy %w", err)
	}
	python := "python3"
	if _, _, is := job.SplitPython(spec.Command); is {
		var err error
		if python, err = findProgram(spec); err != nil {
			return nil, fmt.Errorf("the policy %s: %w", path, err)
		}
	}
	return policies.Command(path, python), nil
}
