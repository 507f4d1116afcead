package collective_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/collective"
)

// Short moves go by a star, longer ones directly, and long ones round a ring.
func TestDefaultRoute(t *testing.T) {
	for bytes, want := range map[int]string{0: "star/256", 4096: "star/256", 4097: "clique/256",
		256 << 10: "clique/256", 256<<10 + 1: "ring/256"} {
		if got := fmt.Sprint(collective.DefaultRoute(bytes)); got != want {
			t.Errorf("%d bytes: %s, want %s", bytes, got, want)
		}
	}
}

// In routes around a slow host that one is a leaf of each tree, or the root above a single host.
func TestCandidatesAround(t *testing.T) {
	for hosts := 2; hosts <= 17; hosts++ {
		for slow := range hosts {
			strategies := map[string]bool{}
			for _, r := range collective.CandidatesAround(slow, hosts, 1<<20) {
				strategies[r.Strategy.String()] = true
				for tree := range r.Strategy.Trees(hosts, -1) {
					linked := 0 // hosts above and below the slow one
					for i := range hosts {
						if i == r.Parent(tree, hosts, slow) || r.Parent(tree, hosts, i) == slow {
							linked++
						}
					}
					if linked != 1 {
						t.Errorf("%v over %d hosts has host %d send to %d others in tree %d", r,
							hosts, slow, linked, tree)
					}
				}
			}
			if len(strategies) != 3 {
				t.Errorf("around host %d of %d: %v", slow, hosts, strategies)
			}
		}
	}
}

// Every route survives being written, and nothing else is read.
func FuzzRoute(f *testing.F) {
	for _, s := range collective.Strategies() {
		f.Add(s.String() + "/64")
		f.Add(s.String() + "/1024x4")
		f.Add(s.String() + "/64@255")
	}
	for _, text := range []string{"", "/", "ring", "ring/", "ring/0", "ring/32", "ring/2048",
		"ring/048", "ring/48", "ring/64 ", "Ring/64", "ring/64/64",
		"ring/64x", "ring/64x0", "ring/64x1", "ring/64x5", "ring/64x02", "ring/64x2x2", "ringx2",
		"ring/64@", "ring/64@0", "ring/64@01", "ring/64@256", "ring/64@-1", "ring/64@1@1",
		"ring/64@1x4", "ring@1/64"} {
		f.Add(text)
		if (&collective.Route{}).UnmarshalText([]byte(text)) == nil {
			f.Errorf("%q is taken for a route", text)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r collective.Route
		if r.UnmarshalText([]byte(text)) != nil {
			return
		}
		bounded := r.Piece >= collective.MinPiece && r.Piece <= collective.MaxPiece &&
			r.Streams >= 1 && r.Streams <= collective.MaxStreams &&
			r.First >= 0 && r.First <= collective.MaxFirst
		if again, _ := r.MarshalText(); string(again) != text || !bounded {
			t.Errorf("%q was read as %v", text, r)
		}
	})
}
