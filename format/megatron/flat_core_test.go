package megatron_test

// This file tests that Megatron-Core loads flat buffers that are written, where it is installed.
import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/framework"
)

// A coreRun is one of Megatron-Core that loads a folder: the ranks that it has, and how large its
// buckets are, 0 without any.
type coreRun struct {
	Folder     string `json:"folder"`
	TP         int    `json:"tp"`
	PP         int    `json:"pp"`
	DP         int    `json:"dp"`
	EP         int    `json:"ep"`
	Chunks     int    `json:"chunks"`
	Bucket     int    `json:"bucket"`
	Hidden     int    `json:"hidden"`
	FFN        int    `json:"ffn"`
	Experts    int    `json:"experts"`
	Layers     int    `json:"layers"`
	Vocabulary int    `json:"vocabulary"`
	Tied       bool   `json:"tied"`
	Shared     bool   `json:"shared"`
}

// TestMegatronCoreLoadsDistributed has the distributed optimizer of Megatron-Core 0.16.1 load what
// is written: each of its data parallel ranks then has the elements that it asked for of each
// parameter. One with buckets that end elsewhere refuses the file, and never takes other elements.
func TestMegatronCoreLoadsDistributed(t *testing.T) {
	cases := []struct {
		axes
		dp, bucket, hidden int
		refused            bool
	}{
		{axes{1, 1, 1, 1}, 1, 0, 8, false}, {axes{2, 2, 1, 1}, 2, 0, 8, false},
		{axes{1, 2, 2, 1}, 4, 0, 8, false}, {axes{1, 2, 1, 2}, 3, 0, 12, false},
		{axes{1, 1, 1, 1}, 2, 64, 8, true},
		{axes{2, 2, 2, 1}, 2, 3000, 64, false},
	}
	var models []*trained
	var runs []coreRun
	var folders []string
	for i, x := range cases {
		var m *trained
		// as Megatron's own modules are
		for seed := uint64(100 * i); m == nil || !m.alone || m.bias || m.grouped ||
			m.tied != (i%2 == 1) || m.shared != (i < 3); seed++ {
			m = drawTrained(rand.New(rand.NewPCG(seed, 1)), x.hidden)
		}
		c, files := m.asCheckpoint()
		if i == 0 { // as other frameworks, which do not say of what type Megatron's gradients are
			c.Values = withoutValue(c.Values, gradients)
		}
		out, err := megatron.LayoutDistributed(x.spec(t, c), c.Tensors, c.Values, files.Read)
		if err != nil {
			t.Fatal(err)
		}
		folder := filepath.Join(t.TempDir(), "checkpoint")
		if err := os.CopyFS(folder, formattest.WritePaddedOutput(t, out, c, files)); err != nil {
			t.Fatal(err)
		}
		models, folders = append(models, m), append(folders, folder)
		runs = append(
			runs,
			coreRun{
				folder,
				x.tp,
				x.pp,
				x.dp,
				x.ep,
				x.chunks,
				x.bucket,
				m.hidden,
				m.ffn,
				m.experts,
				m.layers,
				m.vocab,
				m.tied,
				m.shared,
			},
		)
	}
	text, err := json.Marshal(runs)
	if err != nil {
		t.Fatal(err)
	}
	out := framework.Ask(
		t,
		"megatron/core",
		[]string{"-X", "faulthandler", "testdata/distributed.py", string(text)},
		folders...)
	var found []struct {
		Refused string
		Ranks   []struct {
			TP, PP, EP, Buckets int
			Steps               []float64
			Params              map[string]struct {
				From, To, Of int
				FP32         string
				ExpAvg       string `json:"exp_avg"`
				ExpAvgSq     string `json:"exp_avg_sq"`
				LR           float64
				WDMult       float64 `json:"wd_mult"`
			}
		}
	}
	if err := json.Unmarshal(out, &found); err != nil || len(found) != len(cases) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, x := range cases {
		m, n := models[i], map[string]int{} // how many elements ranks have of each parameter
		if (found[i].Refused != "") != x.refused ||
			!x.refused && len(found[i].Ranks) != x.tp*x.pp*x.dp {
			t.Errorf("%+v: %d ranks; %s", x, len(found[i].Ranks), found[i].Refused)
		}
		for _, r := range found[i].Ranks {
			if len(r.Steps) != 1 || r.Steps[0] != 12 || x.bucket > 0 && r.PP == 0 && r.Buckets < 3 {
				t.Errorf("%+v: %v steps, %d buckets", x, r.Steps, r.Buckets)
			}
			due := 0
			for chunk, params := range m.rankChunks(x.axes, r.TP, r.PP, r.EP) {
				due += len(params)
				for _, p := range params {
					has, there := r.Params[fmt.Sprint(chunk, " ", p.name)]
					if !there {
						due-- // other data parallel ranks have all of it
						continue
					}
					for kind, got := range map[string]string{"fp32": has.FP32,
						"exp_avg": has.ExpAvg, "exp_avg_sq": has.ExpAvgSq} {
						want := hex.EncodeToString(
							slices.Concat(m.partOf(p.whole, m.whole[kind+" "+p.whole], r.TP,
								x.tp).rows...))
						if len(want) != 8*has.Of || want[8*has.From:8*has.To] != got {
							t.Errorf("%+v: %s of %s is %s, want %s", x, kind, p.whole, got, want)
						}
					}
					if has.LR != 0.5 || has.WDMult != 1-float64(m.groupOf(p.whole)) {
						t.Errorf("%+v: the group of %s has lr %v and wd_mult %v", x, p.whole,
							has.LR, has.WDMult)
					}
					n[fmt.Sprint(r.TP, r.PP, r.EP, " ", p.name, chunk)] += has.To - has.From
				}
			}
			if due != len(r.Params) {
				t.Errorf("%+v: rank %d %d %d has %d parameters, and %d are known", x, r.TP, r.PP,
					r.EP, len(r.Params), due)
			}
		}
		if x.refused {
			continue
		}
		// all elements of all parameters are on some data parallel rank; those of what is no expert
		// on ranks of any expert parallel index
		for pp := range x.pp {
			for tp := range x.tp {
				for ep := range x.ep {
					for chunk, params := range m.rankChunks(x.axes, tp, pp, ep) {
						for _, p := range params {
							sum := 0
							for k := range x.ep {
								if inExpert.MatchString(p.whole) && k != ep {
									continue
								}
								sum += n[fmt.Sprint(tp, pp, k, " ", p.name, chunk)]
							}
							if of := m.partOf(p.whole, m.whole[p.whole], tp,
								x.tp).shape.Box().Elements(); sum != of {
								t.Errorf("%+v: ranks have %d of %d elements of %s", x, sum, of,
									p.whole)
							}
						}
					}
				}
			}
		}
	}
}
