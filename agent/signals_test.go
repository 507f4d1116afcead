package agent_test

import (
	"errors"
	"math"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
)

// The agent that leads learns what all hosts see of steps: how noisy their gradients are, by norms
// that the all-reduces take, on one host and on several; where their time goes; and who is slow,
// though nothing but the last call of the step tells of it.
func TestSignals(t *testing.T) {
	const rounds, size = 24, 2
	// both ranks have eight samples, and gradients of 96 elements, half of them 1.5 and half 0.5,
	// which are not the same on the other
	const squaredNorm, variance = 96 * 0.75, 96 * 0.25 * 16
	for name, slots := range map[string][]int{"one host": {size}, "two hosts": {1, 1}} {
		t.Run(name, func(t *testing.T) {
			c := startHosts(t, size, slots, agent.Orders{})
			jobs, agents := make([]*client.Job, size), make([]*agent.Agent, size)
			for range jobs {
				s := <-c.started
				jobs[s.number] = joinWithToken(t, s.agent, s.number, s.token)
				agents[s.number] = s.agent
				agent.SetDecides(s.agent)
			}
			agent.LearnNote(c.head, "liar", `{"generation":1000000,"size":2,"steps":1}`)
			runTogether(t, jobs, func(j *client.Job) error {
				return trainNoisily(t, j, agents, rounds)
			})
			for _, a := range agents {
				agent.SendSignals(a)
			}
			split, estimate, step := agent.Observed(c.head)
			for !estimate.Known || split.Slack == nil { // the note of the other host is on its way
				split, estimate, step = agent.Observed(c.head)
			}
			if math.Abs(estimate.SquaredNorm-squaredNorm) > 1e-3 ||
				math.Abs(estimate.Variance-variance) > 1e-3 {
				t.Errorf("estimate %+v, expected %v and %v", estimate, squaredNorm, variance)
			}
			if len(split.Slack) != size || split.Compute == 0 ||
				len(slots) == 1 && split.Slack[0] <= split.Slack[1] {
				t.Errorf("rank 1 posts after rank 0, and the split is %+v", split)
			}
			if step.Step != rounds || step.Samples != 16 || step.Batch != 16 || step.Size != size ||
				step.Seconds <= 0 {
				t.Errorf("the newest step is %+v", step)
			}
		})
	}
}

// trainNoisily makes so many steps as a worker, of which rank 1 posts its gradient when that of
// rank 0 was taken, and has the agent of its host tell the head of each. Agents are by rank.
func trainNoisily(t *testing.T, j *client.Job, agents []*agent.Agent, rounds int) error {
	gradient, err := client.Empty[float32](j, 96)
	if err != nil {
		return err
	}
	p := make([]float32, 1)
	loop, err := client.Train(j, client.Data{Samples: 1600, Batch: 16, Steps: rounds},
		client.StateOf("p", p))
	if err != nil {
		return err
	}
	other := uint64(0) // ticket of the last gradient of rank 0
	for loop.Next(t.Context()) {
		for i := range gradient {
			gradient[i] = 1.5 - float32((j.Rank()+i)%2)
		}
		for j.Rank() == 1 && agent.EndingOf(agents[0], 0) == other {
			continue
		}
		other = agent.EndingOf(agents[0], 0)
		if err := client.Commit(t.Context(), loop, gradient); err != nil {
			return err
		}
		agent.SendSignals(agents[j.Rank()])
	}
	if loop.Step() != rounds {
		return errors.New("the loop has ended early")
	}
	return loop.Err()
}
