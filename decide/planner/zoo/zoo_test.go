package zoo_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/decide/planner/model"
	"github.com/shoal-ml/shoal/decide/planner/zoo"
)

// TestParameters compares with the parameters of published weights, counted in their files; those
// of GPT-3 and Megatron with the papers, which round.
func TestParameters(t *testing.T) {
	published := map[string]struct{ count, within float64 }{
		"gpt2-small": {124_439_808, 0}, "gpt2-medium": {354_823_168, 0},
		"gpt2-large": {774_030_080, 0}, "gpt2-xl": {1_557_611_200, 0},
		"gpt3-1.3b": {1.3e9, 0.03}, "gpt3-2.7b": {2.7e9, 0.03}, "gpt3-6.7b": {6.7e9, 0.03},
		"gpt3-13b": {13.0e9, 0.03}, "gpt3-175b": {175.0e9, 0.003},
		"gpt-neo-2.7b": {2_651_307_520, 0}, "gpt-neox-20b": {20_554_567_680, 0},
		"megatron-22b": {22e9, 0.02}, "megatron-530b": {530e9, 0.003},
		"megatron-1t": {1e12, 0.01},
		"llama2-7b":   {6_738_415_616, 0}, "llama2-13b": {13_015_864_320, 0},
		"llama2-70b": {68_976_648_192, 0},
		"llama-1b":   {1_235_814_400, 0}, "llama-3b": {3_212_749_824, 0},
		"llama-8b": {8_030_261_248, 0}, "llama-70b": {70_553_706_496, 0},
		"llama-405b": {405_853_388_800, 0},
	}
	for _, s := range zoo.Shapes() {
		want, is := published[s.Name]
		got := float64(s.Parameters())
		if !is || math.Abs(got-want.count) > want.within*want.count {
			t.Errorf("%s has %.0f parameters, want %.0f", s.Name, got, want.count)
		}
	}
	if len(published) != len(zoo.Shapes()) {
		t.Errorf("%d models, of which %d are compared", len(zoo.Shapes()), len(published))
	}
}

// TestOperations compares with the utilisation that Korthikanti et al. 2022 state in table 5, which
// has seconds of a step on so many A100 of 312 TFLOP/s.
func TestOperations(t *testing.T) {
	for _, x := range []struct {
		name           string
		batch, devices int
		seconds, part  float64
	}{
		{"megatron-22b", 4, 8, 1.10, 0.415}, {"gpt3-175b", 64, 64, 13.75, 0.514},
		{"megatron-530b", 280, 280, 37.83, 0.560}, {"megatron-1t", 512, 512, 71.49, 0.563},
	} {
		s, err := zoo.Find(x.name)
		if err != nil {
			t.Fatal(err)
		}
		got := s.Operations() * float64(x.batch) / (x.seconds * float64(x.devices) * 312e12)
		if math.Abs(got-x.part) > 0.003 {
			t.Errorf("%s: %.2f %% of the peak, published are %.1f", x.name, 100*got, 100*x.part)
		}
	}
}

// TestMemory compares with the memory of a device that figure 1 of Korthikanti et al. 2022 shows,
// where eight devices share each block: parameters, gradients and optimizer, and what is kept where
// no scores of attention are. There they share also what each would have whole.
func TestMemory(t *testing.T) {
	const gib, shared = 1 << 30, 8
	for _, x := range []struct {
		name         string
		micro, ahead int // samples of a micro-batch, and how many the first stage holds
		blocks       int // of a stage
		chunks       int // of an interleaved pipeline, in which it holds some more
		state, kept  float64
	}{
		{"megatron-22b", 4, 1, 48, 1, 45.5625, 9.5625},
		{"gpt3-175b", 1, 8, 12, 3, 45.5625, 12.3515625},
		{"megatron-530b", 1, 35, 3, 3, 31.640625, 23.076171875},
		{"megatron-1t", 1, 64, 2, 1, 32.958984375, 26.5625},
	} {
		s, err := zoo.Find(x.name)
		if err != nil {
			t.Fatal(err)
		}
		s.Dropout = true
		m := s.Model([]zoo.Device{{Kind: "a100", Flops: 1, Efficiency: 1, Bandwidth: 1}},
			[]int{x.micro})
		block := m.Layers[1]
		state := float64(block.State) * float64(x.blocks) / shared / gib
		kept := float64(m.Points[0].Layers[block.ID].Kept) * float64(x.blocks*x.ahead) / shared /
			gib
		if math.Abs(state/x.state-1) > 0.001 { // theirs leaves out biases and norms
			t.Errorf("%s: %.4f GiB of state, published are %.4f", x.name, state, x.state)
		}
		if x.chunks > 1 { // section 4.2.3 of the paper
			kept *= 1 + float64(x.ahead-1)/float64(x.ahead*x.chunks)
		}
		if math.Abs(kept/x.kept-1) > 0.01 {
			t.Errorf("%s: %.4f GiB are kept, published are %.4f", x.name, kept, x.kept)
		}
	}
}

// TestShared compares what each of eight ranks keeps of a block with figure 7 of Korthikanti et al.
// 2022: the part of what is kept with the scores of attention, which are 5 bytes for each head and
// pair of tokens.
func TestShared(t *testing.T) {
	const ranks = 8
	for name, want := range map[string]float64{"megatron-22b": 0.4942, "gpt3-175b": 0.5653,
		"megatron-530b": 0.6204, "megatron-1t": 0.6204} {
		s, err := zoo.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		s.Dropout = true
		m := s.Model([]zoo.Device{eight}, []int{1})
		kept := float64(m.Point("a100", ranks, 1).Layers["block.0"].Kept)
		scores := 5 * float64(s.Heads) * float64(s.Context) * float64(s.Context) / ranks
		if got := kept / (kept + scores); math.Abs(got-want) > 0.002 {
			t.Errorf("%s keeps %.2f %%, published are %.2f", name, 100*got, 100*want)
		}
	}
}

// eight is a host of eight devices.
var eight = zoo.Device{Kind: "a100", Flops: 312e12, Efficiency: 0.45, Bandwidth: 1.9e12, Places: 8,
	Inside: &cluster.Link{Curve: cluster.Curve{Latency: 1e-5, Rate: 2e11}}}

// TestDegrees compares eight ranks with one: they have an eighth of matrices and operations, and
// each block takes four sums of what goes between layers, two forward and two back.
func TestDegrees(t *testing.T) {
	s, err := zoo.Find("llama-8b")
	if err != nil {
		t.Fatal(err)
	}
	m := s.Model([]zoo.Device{eight}, []int{2})
	one, shared := m.Point("a100", 1, 2).Layers["block.7"], m.Point("a100", 8, 2).Layers["block.7"]
	bytes := 2 * float64(s.Context) * 2 * float64(s.Width)
	sum := 14 * (1e-5 + bytes/8/2e11)
	for what, x := range map[string][2]float64{
		"forward":  {shared.Forward, one.Forward/8 + 2*sum},
		"backward": {shared.Backward, one.Backward/8 + 2*sum},
	} {
		if math.Abs(x[0]/x[1]-1) > 1e-9 {
			t.Errorf("%s takes %v s, want %v", what, x[0], x[1])
		}
	}
	whole, state := m.Layers[8].Rank(1)
	part, stateOfRank := m.Layers[8].Rank(8)
	if want := (whole-8*int64(s.Width))/8 + 8*int64(s.Width); part != want ||
		stateOfRank >= state/7 {
		t.Errorf("a rank has %d bytes of %d, want %d", part, whole, want)
	}
	if m := mustFind(t, "gpt2-xl").Model([]zoo.Device{eight}, []int{1}); len(m.Points) != 1 {
		t.Errorf("25 heads are shared by %d degrees", len(m.Points))
	}
	if m := mustFind(t, "gpt2-small").Model([]zoo.Device{eight}, []int{1}); len(m.Points) != 3 {
		t.Errorf("12 heads are shared by %d degrees", len(m.Points))
	}
}

// mustFind returns a model that there is.
func mustFind(t *testing.T, name string) zoo.Shape {
	t.Helper()
	s, err := zoo.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestModel reads all models as people's files are read, with points of all known devices.
func TestModel(t *testing.T) {
	devices := devicesOf(t, `{"name": "a100-80", "memory": 1}`,
		`{"name": "NVIDIA-H100-80GB-HBM3", "memory": 1}`,
		`{"name": "Tesla-V100-SXM2-16GB", "memory": 1}`, `{"name": "NVIDIA-A10G", "memory": 1}`)
	for i, want := range []float64{312e12, 989e12, 125e12, 70e12} {
		if devices[i].Flops != want || devices[i].Places != 2 ||
			devices[i].Inside.Seconds(1e6) != 1 {
			t.Errorf("%+v", devices[i])
		}
	}
	for _, s := range zoo.Shapes() {
		text, err := json.Marshal(s.Model(devices, []int{1, 2, 4}))
		if err != nil {
			t.Fatal(err)
		}
		m, err := model.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Layers) != s.Blocks+2 || len(m.Points) != 12*(1+(s.Heads+1)%2) {
			t.Errorf("%s: %d layers, %d points", s.Name, len(m.Layers), len(m.Points))
		}
		var took float64
		for _, c := range m.Point("a100-80", 1, 2).Layers {
			took += c.Forward + c.Backward
		}
		if least := 2 * s.Operations() / (0.6 * 312e12); took < least || took > 1.02*least {
			t.Errorf("%s: two samples take %v s, by operations %v", s.Name, took, least)
		}
	}
}

// TestStated has a device do what the cluster states of it, and refuses one of which nothing is
// known.
func TestStated(t *testing.T) {
	d := devicesOf(t, `{"name": "fast", "memory": 1, "flops": 1e15, "efficiency": 0.5,
		"bandwidth": 1e12}`)
	if d[0].Flops != 1e15 || d[0].Efficiency != 0.5 || d[0].Bandwidth != 1e12 ||
		d[0].Kind != "fast" {
		t.Errorf("%+v", d)
	}
	c := clusterOf(t, `{"name": "fast", "memory": 1, "flops": 1e15}`)
	if _, err := zoo.Devices(c); err == nil || !strings.Contains(err.Error(), "kind fast") {
		t.Errorf("error %v", err)
	}
}

// clusterOf returns hosts of two devices of each of some kinds, whose link takes a second for a
// megabyte.
func clusterOf(t *testing.T, kinds ...string) *cluster.Cluster {
	t.Helper()
	text := `{"shoal": "cluster/1", "links": [{"inside": true, "rate": 1e6}, {"rate": 1e9}],
		"kinds": [` + strings.Join(kinds, ",") + `], "hosts": [`
	for i, kind := range kinds {
		var k struct{ Name string }
		if err := json.Unmarshal([]byte(kind), &k); err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf(`{"name": "h%d", "kind": %q, "places": 2},`, i, k.Name)
	}
	c, err := cluster.Parse([]byte(strings.TrimSuffix(text, ",") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// devicesOf returns the devices of such hosts.
func devicesOf(t *testing.T, kinds ...string) []zoo.Device {
	t.Helper()
	list, err := zoo.Devices(clusterOf(t, kinds...))
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestFind finds models by name, with a context, and says what there is.
func TestFind(t *testing.T) {
	for name, want := range map[string]string{
		"llama-8b": "", "llama-8b@4096": "", "gpt2-xl@512": "",
		"llama-8": "did you mean llama-8b?", "resnet": "there are gpt2-small",
		"llama-8b@0": "from 1 to 2^20", "llama-8b@x": "from 1 to 2^20",
		"gpt2-xl@4096": "learned 1024 positions",
	} {
		_, err := zoo.Find(name)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}
