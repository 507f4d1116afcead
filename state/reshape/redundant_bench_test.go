package reshape_test

import (
	"fmt"
	"testing"

	"github.com/shoal-ml/shoal/state/reshape"
)

// BenchmarkRedundant plans a mesh whose replicas are neighbours, on hosts of 8, so that every host
// has something alone that can be on two: what a job of so many ranks waits for after its first
// step.
func BenchmarkRedundant(b *testing.B) {
	for _, mesh := range []string{"pp=4,tp=4,dp=4", "pp=4,tp=8,dp=8", "pp=16,tp=8,dp=8"} {
		b.Run(mesh, func(b *testing.B) {
			said := reshape.Statement{Mesh: mesh, Layout: `{"shoal": "layout/1", "mesh": "pp=1,tp=1,dp=1", "rules": [
				{"match": "**layers.#.norm", "place": "pp=spread(1,48)"}, {"match": "**layers.#.*", "place": "pp=spread(1,48), tp=shard(0,balanced)"}, {"match": "**"}]}`}
			for _, kind := range []string{"", "optimizer.exp_avg.", "optimizer.exp_avg_sq."} {
				for l := range 48 {
					for _, name := range []string{"qkv", "out", "up", "down", "norm"} {
						said.Tensors = append(said.Tensors,
							reshape.Tensor{Name: fmt.Sprintf("%slayers.%d.%s", kind, l, name),
								DType: "f32", Shape: []int{4096}})
					}
				}
			}
			state, err := reshape.NewState(&said)
			if err != nil {
				b.Fatal(err)
			}
			on, err := state.OnMesh(mesh)
			if err != nil {
				b.Fatal(err)
			}
			at := reshape.Placement{Ranks: upTo(on.Ranks), Redundant: true}
			for r := range on.Ranks {
				at.Hosts = append(at.Hosts, r/8)
			}
			for b.Loop() {
				c, err := reshape.PlanChange(on, on, at)
				if err != nil {
					b.Fatal(err)
				}
				if alone, _ := c.Unreplicated(); alone > 0 {
					b.Fatalf("%d bytes are on one host", alone)
				}
			}
		})
	}
}
