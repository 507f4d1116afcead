package importer_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/decide/planner/importer"
)

// sailorInfo is what is said of one of two layers.
const sailorInfo = `{"params_bytes": 8, "act_output_bytes": 6, "act_mem_bytes": 20}`

// sailorTimes are those of two layers.
const sailorTimes = `{"0": [1, 2, 3], "1": [4, 5, 6]}`

// smallSailor are files of a model of two layers, on two kinds of devices.
var smallSailor = importer.SailorFiles{
	Info: []byte(`{"m": {"1": {"0": ` + sailorInfo + `, "1": ` + sailorInfo + `},
 "2": {"0": {"params_bytes": 4, "act_mem_bytes": 11}, "1": {"params_bytes": 5, "act_mem_bytes": 12}}}}`),
	Profiles: []byte(`{"m": {"new": {"2": {"1": ` + sailorTimes + `, "2": ` + sailorTimes + `,
 "4": ` + sailorTimes + `, "7": ` + sailorTimes + `}}, "old": {"1": {"1": ` + sailorTimes + `}},
 "odd": {"1": {"1": {"0": [1, 2, 3]}}}}}`),
	Network: []byte(`{"intra": {"new": {"2": [[0, 1, 80], 9e10]}, "old": {"2": [[0, 1, 40], 4e10]}},
 "inter": {"new": {"1": [[0, 1, 8], 9e9], "2": [[0, 2, 16], 1.8e10]},
  "old": {"1": [[0, 1, 4], 5e9], "2": [[0, 1, 4], 5e9]}}}`),
	Mixed: []byte(`{"zone": {"new": {"1": {"zone": {"old": {"1": [[0, 0.1, 0.1], 1e8]}}},
  "4": {"zone": {"old": {"4": [[0, 1, 3], 4e9]}}}},
 "old": {"1": {"zone": {"new": {"1": [[0, 1, 2], 3e9]}}},
  "4": {"zone": {"new": {"4": [[0, 1, 3], 4e9]}}}}}}`),
	Config: []byte(`{"new": {"gpus_per_node": 4, "mem_per_gpu": 40000000000},
 "old": {"gpus_per_node": 2, "mem_per_gpu": 16000000000}, "zone": "zone"}`),
}

// TestSailor reads a model and machines of Sailor, by all rules.
func TestSailor(t *testing.T) {
	got, err := importer.Sailor(smallSailor, "m", []importer.SailorHosts{{"new", 2}, {"old", 1}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"a rank has 6 times the bytes of its parameters between steps, for Adam",
		"points of degree 4 on new are left out: what a rank has of the layers is not said",
		"points of degree 7 on new are left out: no machine shares layers so",
		"points of odd are left out: they have 1 layers, and the model has 2",
		"5060000000 bytes of each device are for kernels and the framework",
		"sends are waited for, one at a time, as the program that was measured does",
		"fits of old and new contradict each other: 4 messages together had 40 times the " +
			"bandwidth of one, which is taken for a part of theirs",
	}
	if d := cmp.Diff(want, got.Quirks); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]int{1, 2}, got.Model.Degrees("new")); d != "" {
		t.Error(d)
	}
	c := got.Model.Point("new", 2, 2).Layers["1"]
	params, state := got.Model.Layers[1].Rank(2)
	if c.Forward != 4 || c.Update != 6 || c.Kept != 24 || params != 5 || state != 30 {
		t.Errorf("%+v, %d and %d bytes", c, params, state)
	}
	places := got.Cluster.Places()
	if len(places) != 10 || got.Cluster.Kind("new").Memory != 4e10 {
		t.Errorf("%d places", len(places))
	}
	for _, x := range []struct {
		from, to, messages int
		seconds            float64
	}{
		{0, 1, 1, 1e6 / 80e9}, // inside a host
		{0, 4, 1, 1e6 / 8e9},
		{0, 4, 2, 1e6 / 8e9}, // two have twice the rate
		{8, 0, 1, 1e6 / 0.75e9},
		{8, 0, 4, 1e6 / 0.75e9},
		{4, 0, 3, 3e6 / 18e9}, // no more than the network card
	} {
		link := got.Cluster.Link(places[x.from], places[x.to])
		if s := link.SecondsTogether(1e6, x.messages); math.Abs(s-x.seconds) > 1e-9*x.seconds {
			t.Errorf("from %d to %d %d messages take %v s, want %v", x.from, x.to, x.messages, s,
				x.seconds)
		}
	}
	for _, x := range []struct {
		name  string
		hosts []importer.SailorHosts
		err   string
	}{
		{"n", nil, "there is no model \"n\" with profiles"},
		{"m", []importer.SailorHosts{{"newer", 1}}, "kinds that the config has, [new old zone]"},
		{"m", []importer.SailorHosts{{"new", 5000}}, "up to 4096 hosts"},
		{"m", []importer.SailorHosts{}, "0 hosts"},
	} {
		_, err := importer.Sailor(smallSailor, x.name, x.hosts)
		if err == nil || !strings.Contains(err.Error(), x.err) {
			t.Errorf("%s on %v: error %v, want %q", x.name, x.hosts, err, x.err)
		}
	}
}

// FuzzSailor feeds any text to the reader of files: it does not panic.
func FuzzSailor(f *testing.F) {
	for i, text := range [][]byte{smallSailor.Profiles, smallSailor.Info, smallSailor.Network,
		smallSailor.Mixed, smallSailor.Config} {
		f.Add(text, i+1)
	}
	f.Fuzz(func(t *testing.T, text []byte, which int) {
		files := smallSailor
		switch which {
		case 1:
			files.Profiles = text
		case 2:
			files.Info = text
		case 3:
			files.Network = text
		case 4:
			files.Mixed = text
		case 5:
			files.Config = text
		}
		got, err := importer.Sailor(files, "m", []importer.SailorHosts{{"new", 2}, {"old", 1}})
		if err == nil && len(got.Model.Layers) == 0 {
			t.Error("a model without layers")
		}
	})
}
