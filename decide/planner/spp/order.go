// Package spp has the parts of SPP, a planner of pipelines whose stages have own numbers of
// replicas (Luo et al., "Efficient Pipeline Planning for Expedited Distributed DNN Training",
// INFOCOM 2022): an order of the devices, a partition of layers among them by dynamic programming,
// and a list schedule; with the bound that holds for what they give. They propose plans, and
// timeline judges them. The order that reaches the bound, and the pruning, are this package's own.
// It is pure.
package spp

import "slices"

// Order puts n devices into a row, so that the slowest links are between devices that are far
// apart: the minimum cut of the graph of the links divides them, and then each part is cut again.
// Each of two parts may be reversed, so that the link between them is the fastest. rate gives the
// bytes a second between two devices, the same in both directions.
func Order(n int, rate func(a, b int) float64) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return orderOf(all, rate)
}

// orderOf puts some devices, which are ascending, into a row.
func orderOf(devices []int, rate func(a, b int) float64) []int {
	if len(devices) < 2 {
		return devices
	}
	first, second, _ := MinCut(devices, rate)
	first, second = orderOf(first, rate), orderOf(second, rate)
	if slices.Min(second) < slices.Min(first) {
		first, second = second, first
	}
	var best []int
	fastest := -1.0
	for turned := range 4 {
		a, b := slices.Clone(first), slices.Clone(second)
		if turned&1 != 0 {
			slices.Reverse(b)
		}
		if turned&2 != 0 {
			slices.Reverse(a)
		}
		if r := rate(a[len(a)-1], b[0]); r > fastest {
			best, fastest = append(a, b...), r
		}
	}
	return best
}

// MinCut divides some devices into two parts, so that the sum of the rates between the parts is
// the least (Stoer and Wagner 1997), and returns that sum. Both parts are ascending.
func MinCut(devices []int, rate func(a, b int) float64) (first, second []int, least float64) {
	n := len(devices)
	weight := make([][]float64, n)
	merged := make([][]int, n) // the devices that a vertex stands for
	alive := make([]int, n)
	for i := range weight {
		weight[i] = make([]float64, n)
		for j := range weight[i] {
			if i != j {
				weight[i][j] = rate(devices[i], devices[j])
			}
		}
		merged[i], alive[i] = []int{devices[i]}, i
	}
	var side []int
	for len(alive) > 1 {
		// A phase adds vertices, each time the one that is bound most tightly to those before. The
		// last one against all others is a minimum cut between it and the last but one.
		bound := make([]float64, n)
		rest := slices.Clone(alive)
		last, before := -1, -1
		for len(rest) > 0 {
			at := 0
			for k, v := range rest {
				if bound[v] > bound[rest[at]] {
					at = k
				}
			}
			before, last = last, rest[at]
			rest = slices.Delete(rest, at, at+1)
			for _, v := range rest {
				bound[v] += weight[last][v]
			}
		}
		if side == nil || bound[last] < least {
			side, least = slices.Clone(merged[last]), bound[last]
		}
		merged[before] = append(merged[before], merged[last]...)
		for _, v := range alive {
			weight[before][v] += weight[last][v]
			weight[v][before] = weight[before][v]
		}
		alive = slices.DeleteFunc(alive, func(v int) bool { return v == last })
	}
	slices.Sort(side)
	for _, d := range devices {
		if slices.Contains(side, d) {
			second = append(second, d)
		} else {
			first = append(first, d)
		}
	}
	return first, second, least
}
