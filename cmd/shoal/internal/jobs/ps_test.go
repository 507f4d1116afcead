package jobs

import (
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/setting"
)

// What people read of how workers synchronise follows from the program and the setting, and says
// whether policies may change it.
func TestSyncText(t *testing.T) {
	for _, x := range []struct {
		levers setting.Levers
		now    setting.Setting
		want   string
	}{
		{setting.Levers{}, setting.Setting{}, "-"},
		{setting.Levers{Sync: "ssgd", Round: 1, Auto: true}, setting.Setting{}, "ssgd auto"},
		{setting.Levers{Sync: "ssgd", Round: 1, Auto: true},
			setting.Setting{Sync: "local", Round: 16}, "local/16 auto"},
		{setting.Levers{Sync: "diloco:lr=0.7", Round: 16}, setting.Setting{Round: 8},
			"diloco:lr=0.7/8"},
	} {
		j := api.Job{Training: api.Training{Setting: &x.now, Levers: &x.levers}}
		if got := syncText(j); got != x.want {
			t.Errorf("%+v, %+v: %q, want %q", x.levers, x.now, got, x.want)
		}
	}
	if got := syncText(api.Job{}); got != "-" {
		t.Errorf("of a job without a setting: %q", got)
	}
}

// Of what a worker has reported no digit before the point is missing, in either table.
func TestReportedSteps(t *testing.T) {
	var out strings.Builder
	j := api.Job{Workers: []api.Worker{{Running: true,
		Metrics: map[string]float64{"step": 1234567, "loss": 0.123456789,
			"samples_per_s": 0.4, "tokens_per_s": 1234567.8}}}}
	err := showWorkers(&out, j, false)
	if err != nil || !strings.Contains(out.String(),
		"loss=0.123457 samples_per_s=0.4 step=1234567 tokens_per_s=1234568") {
		t.Errorf("%v:\n%s", err, out.String())
	}
	out.Reset()
	err = showJobs(&out, []*control.Job{{Job: j}}, false)
	if err != nil || !strings.Contains(out.String(), " 0.4 ") {
		t.Errorf("%v:\n%s", err, out.String())
	}
}
