package plan_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/plan"
	"github.com/shoal-ml/shoal/tensor"
)

// llama405 returns the state of Llama 3 405B in training: parameters in bf16, and what Adam keeps
// in f32: 5.7 TB.
func llama405() (tensors []layout.Tensor) {
	const width, inner, kv, vocabulary = 16384, 53248, 1024, 128256
	for _, state := range []string{"", "optimizer.master.", "optimizer.exp_avg.",
		"optimizer.exp_avg_sq."} {
		dtype := tensor.F32
		if state == "" {
			dtype = tensor.BF16
		}
		add := func(name string, shape ...int) {
			tensors = append(tensors, layout.Tensor{Name: state + name, DType: dtype, Shape: shape})
		}
		add("model.embed_tokens.weight", vocabulary, width)
		for l := range 126 {
			p := fmt.Sprintf("model.layers.%d.", l)
			add(p+"self_attn.q_proj.weight", width, width)
			add(p+"self_attn.k_proj.weight", kv, width)
			add(p+"self_attn.v_proj.weight", kv, width)
			add(p+"self_attn.o_proj.weight", width, width)
			add(p+"mlp.gate_proj.weight", inner, width)
			add(p+"mlp.up_proj.weight", inner, width)
			add(p+"mlp.down_proj.weight", width, inner)
			add(p+"input_layernorm.weight", width)
			add(p+"post_attention_layernorm.weight", width)
		}
		add("model.norm.weight", width)
		add("lm_head.weight", vocabulary, width)
	}
	return tensors
}

// megatron405 returns a layout of the model on a mesh of pp, dp and tp, with fused tensors and the
// optimizer cut over dp: "bucket" as the distributed optimizer of Megatron, "flat" tensor by
// tensor, "shard" all state by rows as FSDP.
func megatron405(pp, dp, tp int, optimizer string) *layout.Spec {
	var cuts []string
	// one layer less on the first and the last stage, which have the embeddings
	for s := 1; s < pp; s++ {
		cuts = append(cuts, fmt.Sprint(s*128/pp-1))
	}
	stage := fmt.Sprintf("pp=spread(1,126,cuts=%s)", strings.Join(cuts, "/"))
	dense, state := "", ", dp=flat"
	switch optimizer {
	case "bucket":
		state = ", dp=flat(optimizer)"
	case "shard":
		dense, state = ", dp=shard(0,ceil)", ", dp=shard(0,ceil)"
	}
	s := &layout.Spec{Shoal: layout.Version, Mesh: fmt.Sprintf("pp=%d,dp=%d,tp=%d", pp, dp, tp),
		Store: []layout.Store{
			{Name: "**layers.#.linear_qkv",
				Parts: []string{"**layers.#.self_attn.q_proj.weight",
					"**layers.#.self_attn.k_proj.weight", "**layers.#.self_attn.v_proj.weight"},
				Units: []int{2048, 128, 128}},
			{Name: "**layers.#.linear_fc1",
				Parts: []string{"**layers.#.mlp.gate_proj.weight",
					"**layers.#.mlp.up_proj.weight"}},
		}}
	for _, level := range []struct{ prefix, dp string }{{"optimizer.", state}, {"", dense}} {
		dp := level.dp
		s.Rules = append(s.Rules,
			layout.Rule{Match: level.prefix + "**layers.#.linear_qkv",
				Place: stage + ", tp=shard(0)" + dp},
			layout.Rule{Match: level.prefix + "**layers.#.linear_fc1",
				Place: stage + ", tp=shard(0,blocks=2)" + dp},
			layout.Rule{Match: level.prefix + "**layers.#.**_proj.weight",
				Place: stage + ", tp=shard(1)" + dp},
			layout.Rule{Match: level.prefix + "**layers.#.**", Place: stage + dp},
			layout.Rule{Match: level.prefix + "**embed_tokens.weight",
				Place: "pp=at(0), tp=shard(0)" + dp},
			layout.Rule{Match: level.prefix + "**lm_head.weight",
				Place: "pp=at(-1), tp=shard(0)" + dp},
			layout.Rule{Match: level.prefix + "**norm.weight", Place: "pp=at(-1)" + dp})
	}
	return s
}

// processorTime returns the processor time that this process has used so far; it is the same on a
// machine that others use. It panics where the system does not tell.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// changes405 returns changes of layout of the model onto 16,384 ranks.
func changes405() []change405 {
	return []change405{
		{"dp64to128/bucket", megatron405(16, 64, 8, "bucket"), megatron405(16, 128, 8, "bucket")},
		{"dp128to120/bucket", megatron405(16, 128, 8, "bucket"), megatron405(16, 120, 8, "bucket")},
		{"pp16to8/bucket", megatron405(16, 128, 8, "bucket"), megatron405(8, 256, 8, "bucket")},
		{"tp8to4/bucket", megatron405(16, 128, 8, "bucket"), megatron405(16, 256, 4, "bucket")},
		{"one rank to all",
			&layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}}},
			megatron405(16, 128, 8, "bucket")},
		{"dp64to128/flat", megatron405(16, 64, 8, "flat"), megatron405(16, 128, 8, "flat")},
		{"dp64to128/shard", megatron405(16, 64, 8, "shard"), megatron405(16, 128, 8, "shard")},
		{"pp16to8/shard", megatron405(16, 128, 8, "shard"), megatron405(8, 256, 8, "shard")},
	}
}

// A change405 is a change of layout of the model.
type change405 struct {
	name     string
	from, to *layout.Spec
}

// planChange plans a change on hosts of eight, layouts and schedule included, and returns the plan
// and how many transfers its schedule has. If there is no plan the test fails.
func (c *change405) planChange(t testing.TB, tensors []layout.Tensor) (*plan.Plan, int) {
	src, err := c.from.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := c.to.Resolve(tensors)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Build(src, dst, plan.UniformCluster(src.Ranks, dst.Ranks, 8))
	if err != nil {
		t.Fatal(err)
	}
	return p, len(p.Schedule())
}

// BenchmarkPlan405B says how long planning takes.
func BenchmarkPlan405B(b *testing.B) {
	tensors := llama405()
	for _, c := range changes405() {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			start := processorTime()
			for range b.N {
				p, n := c.planChange(b, tensors)
				b.ReportMetric(float64(p.Stats.Bytes)/float64(p.Stats.State), "copies")
				b.ReportMetric(float64(p.Stats.Busiest)/1e9, "GB-busiest")
				b.ReportMetric(float64(n), "sends")
			}
			b.ReportMetric((processorTime()-start).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// countedVariable says to a child of TestPlan405B that the tool which counts is watching.
const countedVariable = "SHOAL_TEST_COUNTED"

// TestPlan405B holds planning to its limits without a clock: by the bytes that it allocates in all,
// which are more than it ever has at a time, and by the work that it does. That is counted in
// executed statements of the packages that plan, by the tool that measures coverage, in a child
// process: so many as take less than a second a change, with a tenth more: boxes that are compared
// each with each are half as many again.
func TestPlan405B(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds the packages for counting")
	}
	counted := os.Getenv(countedVariable) != ""
	tensors := llama405()
	for _, c := range changes405() {
		if counted {
			c.planChange(t, tensors)
			continue
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.planChange(t, tensors)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > mostAllocated {
			t.Errorf("%s: %d bytes are allocated, more than %d", c.name, n, mostAllocated)
		}
	}
	if counted {
		return
	}
	profile := filepath.Join(t.TempDir(), "profile")
	child := exec.Command("go", "test", "-count=1", "-run=^TestPlan405B$", "-covermode=count",
		"-coverpkg=../...,../../tensor", "-coverprofile="+profile, ".")
	child.Env = append(os.Environ(), countedVariable+"=1")
	if said, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, said)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(text)) {
		var place string
		var statements, times int
		if n, _ := fmt.Sscan(line, &place, &statements, &times); n == 3 {
			total += statements * times
		}
	}
	if total == 0 || total > mostStatements {
		t.Errorf("%d statements are executed, the limit is %d", total, mostStatements)
	}
	t.Logf("%d statements", total)
}

const (
	mostAllocated  = 512 << 20
	mostStatements = 1_400_000_000 // of all changes together; 1.27e9 when this was written
)
