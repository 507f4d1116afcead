// Command shoal-operator runs ShoalJobs in a Kubernetes cluster: install.yaml starts it.
package main

import (
	"flag"
	"fmt"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	clientgo "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	registry "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/operator"
)

func main() {
	metrics := flag.String("metrics", ":8080", "`ADDRESS` of GET /metrics for Prometheus; 0 = none")
	health := flag.String("health", ":8081", "`ADDRESS` of GET /healthz and /readyz")
	elect := flag.Bool("elect", true, "of several operators let one act, which holds a lease")
	lease := flag.String("lease-namespace", "", "`NAMESPACE` of that lease; the default is the "+
		"operator's own")
	list := flag.String("schedule", "", "`NAMESPACES` whose jobs share what there is, such as "+
		"lab=16,team: 16 pods, and as many as the ResourceQuotas of team have")
	resource := flag.String("schedule-resource", "", "`RESOURCE` that they share, such as "+
		"nvidia.com/gpu; the default is pods")
	flag.Parse()
	if flag.NArg() > 0 { // what follows it was not read
		fmt.Fprintf(os.Stderr, "shoal-operator: %q is no flag: write -NAME=VALUE\n", flag.Arg(0))
		os.Exit(2)
	}
	ctrl.SetLogger(zap.New())
	schedules, err := operator.ParseSchedules(*list, *resource)
	if err != nil {
		fmt.Fprintln(os.Stderr, "shoal-operator: -schedule:", err)
		os.Exit(2)
	}
	if err := run(*metrics, *health, *lease, *elect, schedules); err != nil {
		fmt.Fprintln(os.Stderr, "shoal-operator:", err)
		os.Exit(1)
	}
}

// run runs the operator until it is asked to stop.
func run(metrics, health, lease string, elect bool, schedules operator.Schedules) error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgo.AddToScheme,
		v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 200, 400 // the API server has its own limit of what it takes at once
	count := operator.NewMetrics()
	count.Count(config)
	mine, err := labels.NewRequirement(operator.LabelJob, selection.Exists, nil)
	if err != nil {
		return err
	}
	ours := cache.ByObject{Label: labels.NewSelector().Add(*mine)}
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme,
		// what is no part of a job is not kept
		Cache: cache.Options{DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: ours,
				&corev1.Service{}: ours}},
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true,
			DisableFor: []client.Object{&corev1.Secret{}}}}, // which would take watching all
		Metrics: server.Options{BindAddress: metrics}, HealthProbeBindAddress: health,
		LeaderElection: elect, LeaderElectionID: "operator.shoal-ml.github.io",
		LeaderElectionNamespace: lease, LeaderElectionReleaseOnCancel: true})
	if err != nil {
		return err
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	if err := count.Register(registry.Registry, manager.GetClient()); err != nil {
		return err
	}
	kueue, err := operator.HasKueue(manager.GetRESTMapper())
	if err != nil {
		return err
	}
	r := &operator.Reconciler{Client: manager.GetClient(), Fresh: manager.GetAPIReader(),
		Asker:  operator.NewHTTPAsker(),
		Events: manager.GetEventRecorder("shoal-operator"), Now: time.Now, Kueue: kueue,
		Metrics: count, Schedules: schedules, Secrets: new(operator.Secrets)}
	// what the operator itself writes into the status of a job is no news to it
	changed := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{},
		predicate.LabelChangedPredicate{}, operator.ScheduleChanged()))
	jobs := ctrl.NewControllerManagedBy(manager).For(&v1alpha1.ShoalJob{}, changed).
		Owns(&corev1.Pod{}).WithOptions(controller.Options{MaxConcurrentReconciles: 16})
	if kueue {
		workload := new(unstructured.Unstructured)
		workload.SetGroupVersionKind(operator.WorkloadKind)
		jobs = jobs.Owns(workload)
	}
	if err := jobs.Complete(r); err != nil {
		return err
	}
	if len(schedules.Capacity) > 0 {
		if err := startScheduler(manager, r); err != nil {
			return err
		}
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

// startScheduler has schedules decide of the jobs of a reconciler.
func startScheduler(manager ctrl.Manager, r *operator.Reconciler) error {
	s := &operator.Scheduler{Client: r.Client, Fresh: r.Fresh, Events: r.Events, Now: r.Now,
		Metrics: r.Metrics, Schedules: r.Schedules}
	of := handler.EnqueueRequestsFromMapFunc(s.OfNamespace)
	return ctrl.NewControllerManagedBy(manager).Named("schedule").
		Watches(&v1alpha1.ShoalJob{}, of).Watches(&corev1.Pod{}, of).
		Watches(&corev1.ResourceQuota{}, of).Complete(s)
}
