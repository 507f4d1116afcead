package experiment

import (
	"math"
	"testing"
	"testing/fstest"
)

// A way of an epoch takes as many steps as its noise says, of the seconds that were measured, and
// gradients are added up where a batch does not fit. Settings beyond what was measured are no ways.
func TestWaysOfAProfile(t *testing.T) {
	files := fstest.MapFS{}
	const points = "placement,local_bsz,step_time,sync_time\n"
	const epochsOf = "progress,iteration,metric,grad_sqr,grad_var\n"
	for name, text := range map[string]string{
		"placements.csv":    points + "1,8,1,0\n1,16,1.5,0\n2,8,1.25,0.25\n",
		"validation-16.csv": epochsOf + "100,100,0.5,1,1\n300,300,0.6,1,3\n",
		"validation-32.csv": epochsOf + "150,90,0.5,1,4\n300,150,0.6,0,5\n",
	} {
		files["pollux-profiles/tiny/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	in := &Input{Data: files}
	epochs, noise, err := in.waysByEpoch("tiny", 16)
	if err != nil {
		t.Fatal(err)
	}
	if len(epochs) != 2 || len(noise) != 2 || noise[1] != 3 {
		t.Fatalf("epochs %v, noise %v", epochs, noise)
	}
	// A batch of 32 on one GPU is two rounds of 16, and the gain of its first epoch is
	// (4 + 1) / (4 / 2 + 1).
	want := [][3]float64{{1, 16, 100 * 1.5}, {1, 32, 100 / (5.0 / 3) * 3}, {2, 16, 100 * 1.25}}
	if len(epochs[0]) != len(want) {
		t.Fatalf("ways: %+v", epochs[0])
	}
	for i, w := range epochs[0] {
		if float64(w.Slots) != want[i][0] || w.Batch != want[i][1] ||
			math.Abs(w.Seconds-want[i][2]) > 1e-9 || w.Cost != float64(w.Slots)*w.Seconds {
			t.Errorf("way %d: %+v, want %v", i, w, want[i])
		}
	}
	if x := epochs[1][1].Seconds; math.Abs(x-200/2*3) > 1e-9 {
		t.Errorf("where gradients are noise alone, a batch of twice takes half the steps: %v", x)
	}
	for _, name := range []string{"none", "tiny/placements.csv"} {
		if _, _, err := in.waysByEpoch(name, 16); err == nil {
			t.Errorf("%s is no application", name)
		}
	}
	if _, _, err := in.waysByEpoch("tiny", 8); err == nil {
		t.Error("it was not trained with a batch of 8")
	}
}
