package sense_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/predict"
)

// A host for which the others wait is named, with what of its machine is at a limit, and nobody
// where all are as fast, or nothing is known.
func TestSlowHosts(t *testing.T) {
	busy := machine.Unknown()
	busy.CPU, busy.Own = 0.97, 0.582
	machines := []machine.Host{{Name: "a"}, {Name: "b", Usage: busy,
		Bottleneck: &predict.Bottleneck{Resource: predict.CPU}}}
	const why = "; its processors are 97 % busy, 40 % of that by others"
	for name, x := range map[string]struct {
		hosts []string
		slack []float64
		want  []string
	}{
		"one of two": {[]string{"a", "a", "b", "b"}, []float64{0.6, 0.62, 0.2, 0},
			[]string{"host b is slow: the others wait for it 30 % of a step" + why}},
		"another without a reason": {[]string{"a", "b", "c"}, []float64{0, 0.5, 0.4},
			[]string{"host a is slow: the others wait for it 20 % of a step"}},
		"one that waits too, but less than half": {[]string{"a", "c", "d"},
			[]float64{0.5, 0.2, 1},
			[]string{"host c is slow: the others wait for it 15 % of a step"}},
		"one host": {[]string{"b", "b"}, []float64{0, 1},
			[]string{"rank 0 is slow: the others wait for it 50 % of a step" + why}},
		"a tenth is enough": {[]string{"a", "b"}, []float64{0, 0.24},
			[]string{"host a is slow: the others wait for it 12 % of a step"}},
		"nobody":  {[]string{"a", "b"}, []float64{0, 0.19}, nil},
		"alone":   {[]string{"a"}, []float64{1}, nil},
		"unknown": {[]string{"a", "b"}, nil, nil},
	} {
		o := sense.Observation{Size: len(x.hosts), Hosts: x.hosts, Machines: machines,
			Split: sense.Split{Seconds: 2, Slack: x.slack}}
		if diff := cmp.Diff(x.want, o.SlowHosts()); diff != "" {
			t.Errorf("%s (-want +got): %s", name, diff)
		}
	}
}
