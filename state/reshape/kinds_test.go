package reshape_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/layout/layouttest"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/state/reshape"
)

// drawKinds names kinds of hosts on an axis of a mesh.
func drawKinds(t *rapid.T, mesh string, kinds []string) layout.Mesh {
	m, err := layout.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	if len(m) == 0 {
		m = layout.Mesh{{Name: "dp", Size: 1}}
	}
	i := rapid.IntRange(0, len(m)-1).Draw(t, "axis")
	m[i].On = rapid.SliceOfN(rapid.SampledFrom(kinds), m[i].Size, m[i].Size).Draw(t, "on")
	return m
}

// TestKinds changes between random layouts, to a mesh that says on which kinds of hosts ranks are:
// there they come, and where the workers are too few for that, nothing is planned. A redundant job
// has no more on one host alone than another placing by kinds.
func TestKinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		model := layouttest.DrawModel(t)
		from, to := layouttest.DrawSpec(t, model), layouttest.DrawSpec(t, model)
		state, _ := newState(t, model, to)
		_, old := newState(t, model, from)
		m := drawKinds(t, to.Mesh, []string{"a", "b"})
		new, err := state.OnMesh(m.String())
		if err != nil {
			t.Fatal(err)
		}
		at := drawPlacement(t, old.Ranks, old.Ranks+new.Ranks+
			rapid.IntRange(0, 2).Draw(t, "spare"))
		at.Kinds = rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", ""}), 2, 3).Draw(t, "kinds")
		at.Redundant = rapid.Bool().Draw(t, "redundant")
		kindOf := func(host int) string { return append(slices.Clone(at.Kinds), "")[host] }
		room, free := make([]int, 3), map[string]int{}
		for _, h := range at.Hosts {
			if !slices.Contains(at.Leaving, h) {
				room[h]++
				free[kindOf(h)]++
			}
		}
		needs := map[string]int{}
		for rank := range new.Ranks {
			needs[m.KindOf(rank)]++
		}
		fits := true
		for kind, n := range needs {
			fits = fits && n <= free[kind]
		}

		c, err := reshape.PlanChange(old, new, at)
		var lost *plan.LostError
		var unfit *layout.KindError
		if errors.As(err, &lost) {
			return
		}
		if errors.As(err, &unfit) == fits || fits && err != nil {
			t.Fatalf("mesh %s needs %v of %v: %v", m, needs, free, err)
		}
		if !fits {
			if !maps.Equal(unfit.Need, needs) || !strings.Contains(unfit.Error(), m.String()) {
				t.Fatalf("mesh %s needs %v of %v: %v", m, needs, free, err)
			}
			return
		}
		hosts := hostOfRanks(c, at)
		used := map[int]bool{}
		for rank, h := range hosts {
			if kindOf(h) != m.KindOf(rank) || room[h] == 0 || used[c.Workers[rank]] {
				t.Fatalf("rank %d of %s is on worker %d of host %d, of kinds %q", rank, m,
					c.Workers[rank], h, at.Kinds)
			}
			used[c.Workers[rank]] = true
		}
		if !at.Redundant || new.Ranks > 6 {
			return
		}
		has := bytesByHolders(to, model.Tensors)
		least := leastOnOneHost(has, new.Ranks, room, func(rank, h int) bool {
			return kindOf(h) == m.KindOf(rank)
		})
		if after := bytesOnOneHost(has, hosts); after != least {
			t.Fatalf("%d bytes are on one host with %v, and %d need to be; mesh %s, hosts %v of "+
				"kinds %q", after, c.Workers, least, m, at.Hosts, at.Kinds)
		}
	})
}
