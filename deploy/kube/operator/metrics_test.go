package operator

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
)

// calls are requests, and what they count as.
var calls = []struct{ method, url, want string }{
	{"GET", "/api/v1/pods?watch=true", "watch pods"},
	{"GET", "/api/v1/namespaces/lab/pods", "list pods"},
	{"GET", "/api/v1/namespaces/lab/pods/big-1-0", "get pods"},
	{"GET", "/api/v1/namespaces/lab", "get namespaces"},
	{"POST", "/api/v1/namespaces/lab/secrets", "create secrets"},
	{"DELETE", "/api/v1/namespaces/lab/pods/big-1-0", "delete pods"},
	{"PUT", "/apis/shoal-ml.github.io/v1alpha1/namespaces/lab/shoaljobs/big/status",
		"update shoaljobs/status"},
	{"PATCH", "/apis/events.k8s.io/v1/namespaces/lab/events/x", "patch events"},
	{"GET", "/apis/kueue.x-k8s.io/v1beta2/resourceflavors/a100", "get resourceflavors"},
	{"GET", "/apis/shoal-ml.github.io/v1alpha1", "get "},
	{"GET", "/version", "get "},
}

// TestCallOf counts requests by verb and resource.
func TestCallOf(t *testing.T) {
	for _, x := range calls {
		r, err := http.NewRequest(x.method, "https://server"+x.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if verb, resource := callOf(r); verb+" "+resource != x.want {
			t.Errorf("%s %s is %q %q, not %q", x.method, x.url, verb, resource, x.want)
		}
	}
}

// FuzzCallOf counts requests that nobody would make.
func FuzzCallOf(f *testing.F) {
	for _, x := range calls {
		f.Add(x.method, x.url)
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		u, err := url.Parse(path)
		if err != nil {
			return
		}
		verb, resource := callOf(&http.Request{Method: method, URL: u})
		if verb == "" || len(resource) > len(path) {
			t.Errorf("%s %q is %q %q", method, path, verb, resource)
		}
	})
}

// readMetrics returns the metrics of a registry, one a line.
func readMetrics(t *testing.T, registry *prometheus.Registry) string {
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, family := range families {
		for _, m := range family.Metric {
			line := family.GetName()
			for _, l := range m.Label {
				line += " " + l.GetValue()
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if value != 0 {
				lines = append(lines, line+" "+samplesText(value))
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestMetrics reads what Prometheus would.
func TestMetrics(t *testing.T) {
	c := newCluster(t, newJob(example))
	registry := prometheus.NewRegistry()
	m := NewMetrics()
	c.must(m.Register(registry, c.api))
	config := &rest.Config{}
	m.Count(config)
	served := counted(func(*http.Request) (*http.Response, error) { return nil, nil })
	through := config.WrapTransport(served)
	r, err := http.NewRequest("GET", "https://server/api/v1/pods", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = through.RoundTrip(r)
	_, _ = through.RoundTrip(r)
	rec := &Reconciler{Events: c, Metrics: m}
	rec.say(c.job(), decide.Event{Reason: "Started", Text: "it begins"})
	want := "shoal_api_calls_total pods list 2\nshoal_job_changes_total Started 1\n" +
		"shoal_jobs Pending 1"
	if got := readMetrics(t, registry); got != want {
		t.Errorf("the metrics are\n%s\nwant\n%s", got, want)
	}
	j := c.job()
	j.Status.Phase = v1alpha1.Running
	c.must(c.api.Status().Update(t.Context(), j))
	if got := readMetrics(t, registry); !strings.Contains(got, "shoal_jobs Running 1") {
		t.Errorf("a job that runs is not counted:\n%s", got)
	}
}
