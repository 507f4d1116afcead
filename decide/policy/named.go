package policy

import "github.com/shoal-ml/shoal/decide"

// All returns the policies that people can name, in a new list: those that decide unless others are
// named, and published rules to compare them with. Budget is not among them: it needs numbers too.
func All() []decide.Policy {
	return []decide.Policy{Batch{}, Shares{}, Size{}, Checkpoint{}, Sync{}, KungFuBatch{},
		Wagenlander{}, Learners{}, Adaptive{}}
}

// Named returns the policy of a name; nil = there is none.
func Named(name string) decide.Policy {
	for _, p := range All() {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

// Names returns the names of all policies that people can name, in a new list.
func Names() (names []string) {
	for _, p := range All() {
		names = append(names, p.Name())
	}
	return names
}
