package api

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestMetricsKeepWhatIsNotFinite(t *testing.T) {
	sent := Request{Type: TypeReport,
		Metrics: Metrics{"step": 12, "loss": math.NaN(), "best": math.Inf(-1),
			"worst": math.Inf(1)}}
	text, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"type":"report","metrics":{"best":"-Inf","loss":"NaN","step":12,"worst":"+Inf"}}`; string(text) != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
	var got Request
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sent, got, cmpopts.EquateNaNs()); diff != "" {
		t.Errorf("(-sent +received)\n%s", diff)
	}
}

func TestMetricsRefuseOtherValues(t *testing.T) {
	for _, value := range []string{`"nan"`, `"1"`, `null`, `true`, `[1]`, `{}`} {
		var m Metrics
		if err := json.Unmarshal([]byte(`{"loss":`+value+`}`), &m); err == nil ||
			!strings.Contains(err.Error(), `"loss"`) {
			t.Errorf("%s: %v, error %v", value, m, err)
		}
	}
}
