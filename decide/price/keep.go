package price

import "slices"

// Keep is the special case of a chain of stages without a bound, deterministic: a replica that is
// not needed is kept until it has cost as much as starting one. That costs at most twice what the
// best does that knows all that is to come, as renting skis does (Karlin and others, Algorithmica
// 1988). One goroutine uses it at a time.
type Keep struct {
	Stages []Stage
	idle   [][]int // by stage, for how many slots of time each replica has not been needed
}

// Step implements Scaler. The replicas that were needed last are used first.
func (k *Keep) Step(need []int) ([]int, error) {
	if k.idle == nil {
		k.idle = make([][]int, len(k.Stages))
	}
	whole := make([]int, len(k.Stages))
	for i, s := range k.Stages {
		for len(k.idle[i]) < need[i] {
			k.idle[i] = append(k.idle[i], 0)
		}
		for j := range k.idle[i] {
			if k.idle[i][j]++; j < need[i] {
				k.idle[i][j] = 0
			}
		}
		k.idle[i] = slices.DeleteFunc(k.idle[i], func(slots int) bool {
			return float64(slots)*s.Run > s.Start
		})
		whole[i] = len(k.idle[i])
	}
	return whole, nil
}

// Cheapest returns what a chain without a bound costs at the least, if all that it needs is known
// before: a replica is kept for as long as that costs less than starting one when it is needed
// again. A need has one number for each stage.
func Cheapest(stages []Stage, needs [][]int) (cost float64) {
	for i, s := range stages {
		var last []int // by replica, when it was needed last; -1 = never
		for now, need := range needs {
			for j := range need[i] {
				if j == len(last) {
					last = append(last, -1)
				}
				cost += s.Run
				if gap := now - last[j] - 1; last[j] < 0 {
					cost += s.Start
				} else {
					cost += min(s.Start, float64(s.Run*float64(gap)))
				}
				last[j] = now
			}
		}
	}
	return cost
}

// Cost returns what a chain costs with what a Scaler chooses, and that for each slot of time; an
// error of the Scaler.
func Cost(stages []Stage, s Scaler, needs [][]int) (cost float64, chosen [][]int, err error) {
	before := make([]int, len(stages))
	for _, need := range needs {
		after, err := s.Step(need)
		if err != nil {
			return 0, nil, err
		}
		for i, stage := range stages {
			cost += stage.cost(before[i], after[i])
		}
		before, chosen = after, append(chosen, after)
	}
	return cost, chosen, nil
}
