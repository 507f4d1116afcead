package policy_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
)

// setHostMemories gives a job of four workers two hosts, of which h1 has three, with a memory on
// each.
func setHostMemories(o *sense.Observation, h1, h2 machine.Memory) {
	o.Hosts = []string{"h1", "h2", "h1", "h1"}
	o.Machines = []machine.Host{{Name: "h1", Memory: []machine.Memory{h1}},
		{Name: "h2", Memory: []machine.Memory{h2}}, {Name: "gone", Memory: []machine.Memory{h1}}}
}

// Whatever workers need, as long as it grows with their samples in a line, a batch that policies
// grow never needs more than the memory that there is; and one that fits well is grown.
func TestBatchFitsMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const gib = 1 << 30
		fixed := rapid.Float64Range(0, 2*gib).Draw(t, "fixed")
		each := rapid.Float64Range(0, 0.2*gib).Draw(t, "each sample")
		room := rapid.Float64Range(3*3*gib, 40*gib).Draw(t, "room")
		device := rapid.Bool().Draw(t, "GPU")
		o := observed(4*rapid.Uint64Range(8, 16).Draw(t, "batch"), 1e6)
		need := func() float64 { return fixed + each*float64(o.Setting.Batch)/4 }
		workers := 3. // that share the room
		if device {
			workers = 1
		}
		if workers*need() > 0.9*room {
			return
		}
		for {
			m := machine.Memory{Used: need(), Samples: float64(o.Setting.Batch) / 4, Room: room,
				Device: device}
			setHostMemories(&o, m, machine.Memory{Used: 1, Samples: 1, Room: 1e12})
			d, _ := policy.Batch{}.Decide(o, exact{o, 1e6}, nil)
			if d.To == nil {
				break
			}
			if o.Setting.Batch = d.To.Setting.Batch; workers*need() > 0.91*room {
				t.Fatalf("%d needs %v of %v", o.Setting.Batch, workers*need(), room)
			}
		}
		if o.Setting.Batch < 1024 && workers*need() < 0.6*room {
			t.Errorf("%d needs only %v of %v, and does not grow", o.Setting.Batch, workers*need(),
				room)
		}
	})
}

// The reason says which batch would take too much memory, how much there is, and where.
func TestBatchSaysWhatMemoryItWouldTake(t *testing.T) {
	o := observed(256, 1e6)
	setHostMemories(&o, machine.Memory{Used: 2.5 * (1 << 30), Samples: 64, Room: 16 * (1 << 30)},
		machine.Memory{Used: 1, Samples: 64, Room: 1e12})
	const why = "512 would take up to 15 of 16 GiB on h1"
	d, _ := policy.Batch{}.Decide(o, exact{o, 1e6}, nil)
	if d.To == nil || d.To.Setting.Batch > 491 || d.To.Setting.Batch < 450 ||
		!strings.Contains(d.Because, why) {
		t.Errorf("%+v: %s", d.To, d.Because)
	}
	o.Machines[0].Memory[0] = machine.Memory{Used: 7.5 * (1 << 30), Samples: 64,
		Room: 8 * (1 << 30), Device: true}
	d, _ = policy.Batch{}.Decide(o, exact{o, 1e6}, nil)
	if d.To != nil || !strings.Contains(d.Because,
		"512 would take up to 15 of 8 GiB of a GPU on h1") {
		t.Errorf("%+v: %s", d.To, d.Because)
	}
}
