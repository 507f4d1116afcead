package cost

import "github.com/shoal-ml/shoal/collective"

// Step is a training step in which the backward pass makes gradients evenly, and the hosts average
// them in buckets meanwhile: a bucket is sent as soon as it is full and the one before has left (Li
// et al., "PyTorch Distributed", VLDB 2020, §3.2).
type Step struct {
	Hosts    int     // number of hosts
	Bytes    int     // bytes of all gradients, on each host
	Backward float64 // seconds of the backward pass
}

// StepSeconds predicts the seconds from the begin of the backward pass until all hosts have the
// mean of the last bucket. Buckets have so many bytes and go by a route. The messages about one
// bucket do not overlap with those about the next: the head deals with one collective after the
// other. It is a function of its arguments and of the value m.
func (m Model) StepSeconds(s Step, bucket int, r collective.Route) float64 {
	n := max((s.Bytes+bucket-1)/bucket, 1)
	each := s.Bytes / n
	one := m.AllReduceSeconds(r, s.Hosts, each)
	// from the end of a bucket to the end of the next, where all wait for the network
	next := m.Fixed + max(m.AllReduceSeconds(r, s.Hosts, 2*each)-one, 0)
	network := s.Backward/float64(n) + float64(float64(n-1)*next)
	return max(network, s.Backward) + one
}
