package agent

import (
	"fmt"
	"math"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide/policy"
)

// The size of the buckets of gradients, as a worker asks for it.

// maxStepBytes bounds the numbers of bytes that a worker says of a step.
const maxStepBytes = 1 << 53

// serveBucket answers how large the buckets of a worker's gradients should be. It runs on the
// session's goroutine.
func (s *session) serveBucket(r *api.BucketRequest) error {
	switch {
	case r.Bytes < 1 || r.Bytes > maxStepBytes:
		return &collective.FieldError{Field: "bytes",
			Problem: fmt.Sprintf("%d: a step has from 1 to 2⁵³ bytes of gradients", r.Bytes)}
	case r.Now < 1 || r.Now > maxStepBytes:
		return &collective.FieldError{Field: "now",
			Problem: fmt.Sprintf("%d: a bucket has from 1 to 2⁵³ bytes", r.Now)}
	case math.IsInf(r.Seconds, 0) || !(r.Seconds >= 0):
		return &collective.FieldError{Field: "seconds",
			Problem: fmt.Sprintf("%v: a backward pass takes no time or some", r.Seconds)}
	}
	size, err := s.agent.bucketBytes(cost.Step{Bytes: int(r.Bytes), Backward: r.Seconds},
		int(r.Now))
	if err != nil {
		return err
	}
	return s.reply(&api.BucketReply{Bytes: int64(size)})
}

// bucketBytes returns how many bytes the buckets of a step should have, which have now until now; 0
// where nothing is known, or nothing is to be chosen. The hosts of the step are those of the newest
// all-reduce. It waits for the engine's thread, and fits a model, so it is not for that thread.
func (a *Agent) bucketBytes(step cost.Step, now int) (int, error) {
	r := &a.driver.routes
	var ways map[int]collective.Route
	if err := a.engine.runAndWait(func() {
		step.Hosts, ways = r.hosts, r.routesByLength(append(policy.BucketSizes(step.Bytes), now))
	}); err != nil || ways == nil {
		return 0, err
	}
	return r.bestBucketBytes(step, now, ways), nil
}

// routesByLength returns the routes of all-reduces by their lengths in bytes; nil if nothing is to
// be chosen. It runs on the engine's thread.
func (r *routes) routesByLength(lengths []int) map[int]collective.Route {
	if r.fixed {
		return nil
	}
	ways := map[int]collective.Route{}
	for _, bytes := range lengths {
		ways[bytes] = r.chooseRoute(collective.AllReduce, r.hosts, bytes)
	}
	return ways
}

// bestBucketBytes is the best size of buckets, in bytes, as the tuner's model has it; 0 = it has
// none yet. now is the size that they have, and ways the route of each size that may be chosen. It
// locks r.mu and fits a model, which is not for the engine's thread.
func (r *routes) bestBucketBytes(step cost.Step, now int, ways map[int]collective.Route) int {
	model, known := r.model(step.Hosts)
	if !known {
		return 0
	}
	return policy.DecideBucketSize(model, step, now, func(bytes int) collective.Route {
		return ways[bytes]
	}).To
}
