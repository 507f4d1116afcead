package plan

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// drawSpreading draws blocks, hosts that have room for all of them, and sets of blocks, which
// overlap only if overlap says that they may. No block has a host yet.
func drawSpreading(t *rapid.T, overlap bool) *antiAffinity {
	blocks := rapid.IntRange(2, 6).Draw(t, "blocks")
	s := &antiAffinity{hosts: rapid.IntRange(1, 3).Draw(t, "hosts")}
	s.order = rapid.Permutation(upTo(s.hosts)).Draw(t, "order of hosts")
	room := 0
	for range s.hosts {
		s.free = append(s.free, rapid.IntRange(0, blocks).Draw(t, "room"))
		room += s.free[len(s.free)-1]
	}
	if room < blocks {
		s.free[0] += blocks - room
	}
	if rapid.Bool().Draw(t, "kinds") {
		for range blocks {
			s.allowed = append(s.allowed, rapid.SliceOfN(rapid.SampledFrom([]bool{true, true, true,
				false}), s.hosts, s.hosts).Draw(t, "allowed"))
		}
		if !s.canPlaceAll(blocks) {
			s.allowed = nil
		}
	}
	for range blocks * s.hosts {
		s.missing = append(s.missing, rapid.IntRange(0, 9).Draw(t, "lacks"))
	}
	left := rapid.Permutation(upTo(blocks)).Draw(t, "order")
	for range rapid.IntRange(0, 4).Draw(t, "sets") {
		n := rapid.IntRange(2, 4).Draw(t, "blocks of a set")
		if n > len(left) {
			break
		}
		set := sharedSet{bytes: rapid.IntRange(1, 9).Draw(t, "bytes")}
		for _, b := range left[:n] {
			set.blocks = append(set.blocks, int32(b))
		}
		slices.Sort(set.blocks)
		s.sets = append(s.sets, set)
		if left = left[n:]; overlap {
			left = rapid.Permutation(upTo(blocks)).Draw(t, "order")
		}
	}
	slices.SortStableFunc(s.sets, func(a, b sharedSet) int { return b.bytes - a.bytes })
	return s
}

// currentCost returns the bytes that are on one host only, what blocks lack on their hosts, and how
// far these are from the order of ranks.
func (s *antiAffinity) currentCost() (c cost) {
	for i := range s.sets {
		if s.isOnOneHost(i) {
			c.unreplicated += s.sets[i].bytes
		}
	}
	for b, h := range s.hostOf {
		c.bytes += s.missing[b*s.hosts+h]
		c.order += b * (s.hosts - 1 - s.order[h])
	}
	return c
}

// leastCost tries all hosts for all blocks, where room is the number of blocks that each host can
// take, and returns the least cost. It changes nothing of s, and leaves room as it was.
func (s *antiAffinity) leastCost(room []int) (best cost) {
	try := antiAffinity{hosts: s.hosts, missing: s.missing, order: s.order, sets: s.sets,
		hostOf: make([]int, len(s.hostOf))}
	best.unreplicated = forbidden
	var walk func(b int)
	walk = func(b int) {
		if b == len(try.hostOf) {
			if c := try.currentCost(); c.less(best) {
				best = c
			}
			return
		}
		for h := range room {
			if room[h] > 0 && s.mayTake(h, b) {
				room[h]--
				try.hostOf[b] = h
				walk(b + 1)
				room[h]++
			}
		}
	}
	walk(0)
	return best
}

// upTo returns the numbers from 0 to n-1.
func upTo(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// TestAntiAffinity compares with all placings: of sets that do not overlap both what is on one host
// and what is lacked there are the least, and of others swaps change nothing for the worse.
func TestAntiAffinity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		overlap := rapid.Bool().Draw(t, "overlap")
		s := drawSpreading(t, overlap)
		room := slices.Clone(s.free)
		s.assignHosts(len(s.missing) / s.hosts)
		flown := s.currentCost()
		s.swapBlocks()
		load := make([]int, s.hosts)
		for b, h := range s.hostOf {
			if load[h]++; !s.mayTake(h, b) {
				t.Fatalf("host %d takes block %d, which it may not", h, b)
			}
		}
		for h, n := range load {
			if n > room[h] || s.free[h] != room[h]-n {
				t.Fatalf(
					"host %d takes %d blocks, has had room for %d, and is said to have it for %d",
					h, n, room[h], s.free[h])
			}
		}
		got, want := s.currentCost(), s.leastCost(room)
		if !overlap && (got != want || got != flown) {
			t.Fatalf("%+v after %+v, and %+v is possible: %+v", got, flown, want, s)
		}
		if got.unreplicated > flown.unreplicated || got.unreplicated < want.unreplicated {
			t.Fatalf("%+v after %+v; %+v is the least", got, flown, want)
		}
		s.checkNoChange(t, got)
	})
}

// checkNoChange fails the test if a move of a block, or a swap of two, leaves fewer bytes on one
// host only than now.
func (s *antiAffinity) checkNoChange(t *rapid.T, now cost) {
	for a := range s.hostOf {
		for h, room := range s.free {
			if was := s.hostOf[a]; room > 0 && s.mayTake(h, a) {
				s.hostOf[a] = h
				if c := s.currentCost(); c.unreplicated < now.unreplicated {
					t.Fatalf("block %d on host %d leaves %+v, and not %+v", a, h, c, now)
				}
				s.hostOf[a] = was
			}
		}
		for b := range a {
			x, y := s.hostOf[a], s.hostOf[b]
			if s.mayTake(y, a) && s.mayTake(x, b) {
				s.hostOf[a], s.hostOf[b] = y, x
				if c := s.currentCost(); c.unreplicated < now.unreplicated {
					t.Fatalf("blocks %d and %d swapped leave %+v, and not %+v", a, b, c, now)
				}
				s.hostOf[a], s.hostOf[b] = x, y
			}
		}
	}
}

// TestDisjoint has a set that contains others: it does not keep them from being chosen, however
// many bytes it has.
func TestDisjoint(t *testing.T) {
	s := &antiAffinity{
		sets: []sharedSet{{[]int32{0, 1, 2, 3}, 9}, {[]int32{0, 1}, 2}, {[]int32{1, 2}, 1},
			{[]int32{3, 4}, 1}}}
	if chosen, of := s.chooseDisjoint(6); len(chosen) != 2 ||
		!slices.Equal(of, []int{0, 0, 2, 1, 1, 2}) {
		t.Errorf("%v are chosen, and blocks are in %v", chosen, of)
	}
}
