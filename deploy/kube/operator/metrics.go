package operator

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
)

// What Prometheus is told of the operator, beside what every controller tells it.

// Metrics counts what the operator does, and says how many jobs do what. NewMetrics makes one;
// where a Reconciler or a Scheduler has nil, what happens to jobs is not counted.
type Metrics struct{ changes, calls *prometheus.CounterVec }

// NewMetrics returns metrics that nobody sees yet.
func NewMetrics() *Metrics {
	return &Metrics{
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "shoal_job_changes_total",
			Help: "What has happened to jobs, by the reason of its event."},
			[]string{"reason"}),
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "shoal_api_calls_total",
			Help: "Requests to the API server, by verb and resource; a watch counts once."},
			[]string{"verb", "resource"})}
}

// Register has a registry show the metrics, with the jobs that are in a cache when somebody asks.
func (m *Metrics) Register(registry prometheus.Registerer, jobs client.Reader) error {
	return errors.Join(registry.Register(m.changes), registry.Register(m.calls),
		registry.Register(jobCounts{jobs}))
}

// changed counts something that has happened to a job.
func (m *Metrics) changed(reason string) {
	if m != nil {
		m.changes.WithLabelValues(reason).Inc()
	}
}

// Count has all requests of a configuration counted.
func (m *Metrics) Count(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return counted(func(r *http.Request) (*http.Response, error) {
			verb, resource := callOf(r)
			m.calls.WithLabelValues(verb, resource).Inc()
			return next.RoundTrip(r)
		})
	})
}

// counted is a function as http.RoundTripper.
type counted func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f counted) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// callOf returns what a request does with which kind of objects, as the rules of RBAC name it, such
// as list and pods, or update and shoaljobs/status. What is about no objects is get and "".
func callOf(r *http.Request) (verb, resource string) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[0] == "api":
		parts = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		parts = parts[3:]
	default:
		return "get", ""
	}
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	named := len(parts) > 1
	resource = parts[0]
	if len(parts) > 2 {
		resource += "/" + parts[2]
	}
	switch r.Method {
	case http.MethodPost:
		return "create", resource
	case http.MethodPut:
		return "update", resource
	case http.MethodPatch:
		return "patch", resource
	case http.MethodDelete:
		return "delete", resource
	}
	watch := r.URL.Query().Get("watch")
	switch {
	case watch == "true" || watch == "1":
		return "watch", resource
	case named:
		return "get", resource
	}
	return "list", resource
}

// jobCounts says how many jobs are in which phase.
type jobCounts struct{ jobs client.Reader }

// jobsNow is the metric of jobCounts.
var jobsNow = prometheus.NewDesc("shoal_jobs", "ShoalJobs that there are, by phase.",
	[]string{"phase"}, nil)

// listPatience bounds how long a scrape waits for the cache, which is filled when the operator
// leads.
const listPatience = 2 * time.Second

// Describe implements prometheus.Collector.
func (c jobCounts) Describe(to chan<- *prometheus.Desc) { to <- jobsNow }

// Collect implements prometheus.Collector.
func (c jobCounts) Collect(to chan<- prometheus.Metric) {
	ctx, stop := context.WithTimeout(context.Background(), listPatience)
	defer stop()
	var list v1alpha1.ShoalJobList
	if err := c.jobs.List(ctx, &list); err != nil {
		return // there is no answer now
	}
	counts := map[v1alpha1.Phase]int{}
	for _, p := range []v1alpha1.Phase{"Pending", v1alpha1.Starting, v1alpha1.Running,
		v1alpha1.Parking, v1alpha1.Parked, v1alpha1.Succeeded, v1alpha1.Failed,
		v1alpha1.Invalid} {
		counts[p] = 0
	}
	for i := range list.Items {
		phase := list.Items[i].Status.Phase
		if phase == v1alpha1.Pending {
			phase = "Pending"
		}
		counts[phase]++
	}
	for p, n := range counts {
		to <- prometheus.MustNewConstMetric(jobsNow, prometheus.GaugeValue, float64(n), string(p))
	}
}
