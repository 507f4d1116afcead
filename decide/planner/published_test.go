package planner_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/zoo"
)

// TestPublished compares models by formula with the seconds of a step that Korthikanti et al. 2022
// state in table 5, on so many A100, eight of which share each layer, with 1F1B. Two of theirs are
// interleaved, which shortens the wait at both ends, and all share also norms. Each is in the
// interval that is predicted, and none is off by more than a third.
func TestPublished(t *testing.T) {
	for _, x := range []struct {
		name          string
		blocks        int // of a stage; the first has the embedding too, and the last the head
		stages, micro int
		batch         int
		seconds       float64
	}{
		{"megatron-22b", 48, 1, 4, 4, 1.10}, {"gpt3-175b", 12, 8, 1, 64, 13.75},
		{"megatron-530b", 3, 35, 1, 280, 37.83}, {"megatron-1t", 2, 64, 1, 512, 71.49},
	} {
		all := cluster.Cluster{Shoal: cluster.Version,
			Kinds: []cluster.Kind{{Name: "a100", Memory: 1 << 49}},
			Links: []cluster.Link{
				{Inside: true, Curve: cluster.Curve{Latency: 1e-5, Rate: 2.5e11}},
				{Curve: cluster.Curve{Latency: 2e-5, Rate: 2.5e10}}}}
		shares := make([]string, x.stages)
		for s := range x.stages {
			all.Hosts = append(all.Hosts, cluster.Host{Name: fmt.Sprint("h", s), Kind: "a100",
				Places: 8})
			layers := x.blocks
			if s == 0 {
				layers++
			}
			if s == x.stages-1 {
				layers++
			}
			shares[s] = fmt.Sprint(layers)
		}
		c := reread(t, all, cluster.Parse)
		shape, err := zoo.Find(x.name)
		if err != nil {
			t.Fatal(err)
		}
		devices, err := zoo.Devices(c)
		if err != nil {
			t.Fatal(err)
		}
		mesh := fmt.Sprintf("pp=%d(%s;micro=%d),tp=8", x.stages, strings.Join(shares, "/"), x.micro)
		r, err := planner.Judge(planner.Request{Model: shape.Model(devices, []int{x.micro}),
			Cluster: c, Batch: x.batch}, mesh)
		if err != nil {
			t.Fatal(err)
		}
		p := r.Best.Predicted
		off := p.Seconds/x.seconds - 1
		t.Logf("%s on %d devices: %.2f s, published are %.2f: %+.0f %%", x.name, 8*x.stages,
			p.Seconds, x.seconds, 100*off)
		if x.seconds < p.Low || x.seconds > p.High || off > 0.34 || off < -0.34 {
			text, _ := json.Marshal(p)
			t.Errorf("%s: published are %v s, predicted %s", x.name, x.seconds, text)
		}
	}
}
