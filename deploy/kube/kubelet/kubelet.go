// Package kubelet runs the pods of an API server as processes of this machine, for tests: each has
// an address of its own on the loopback device, and its Secrets and empty folders as files. It does
// what a kubelet does of the life of a pod: it starts the first container, reports how it is and
// how it has ended, sends SIGTERM when the pod is to be deleted, and confirms when it has gone.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/internal/group"
)

// Kubelet runs pods. New makes one, and Run has it work until a context ends.
type Kubelet struct {
	api  client.Client
	dir  string
	env  []string
	bind func(ctx context.Context, p *corev1.Pod) error

	// only Run uses these
	pods   map[string]*process // by UID
	silent []*process          // of nodes that have gone silent
	next   int                 // number of the next pod
	ends   *group.Group

	mu      sync.Mutex // guards lost and refused
	lost    map[string]*loss
	refused error
}

// loss is the end of a node.
type loss struct {
	silent bool           // its processes are stopped, and their connections stay
	at     chan time.Time // gets when it was, once
	done   bool           // it was; only Run uses this
}

// process is a pod whose process was started.
type process struct {
	pod  *corev1.Pod // as it was when it was started
	ip   string
	end  string        // path of its termination message
	cmd  *exec.Cmd     // of the first container
	done chan struct{} // closed when it has ended
	term time.Time     // when it was asked to end; zero = it was not
}

// New returns a kubelet that keeps files in a folder, and starts processes with additions to the
// environment. bind tells the API server on which node a pod is.
func New(api client.Client, dir string, env []string,
	bind func(ctx context.Context, p *corev1.Pod) error) *Kubelet {
	return &Kubelet{api: api, dir: dir, env: env, bind: bind, pods: map[string]*process{},
		lost: map[string]*loss{}}
}

// pause is how long the kubelet waits before it looks at all pods again.
const pause = 50 * time.Millisecond

// Run looks at the pods until ctx ends, and then kills all processes and waits for them.
func (k *Kubelet) Run(ctx context.Context) error {
	k.ends = group.New(context.WithoutCancel(ctx))
	for ctx.Err() == nil {
		k.loseAll()
		if err := k.look(ctx); err != nil && ctx.Err() == nil {
			k.mu.Lock()
			k.refused = err // the next look may do better
			k.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	for _, p := range k.pods {
		p.signal(syscall.SIGKILL)
	}
	for _, p := range k.silent {
		p.signal(syscall.SIGKILL)
	}
	return k.ends.Wait()
}

// Err returns what the API server has refused last; nil = nothing.
func (k *Kubelet) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.refused
}

// Lose has the process of a pod vanish as with the node that it is on: at once, and nobody reports
// it. A node that is silent goes without a word to its peers too, as one whose cable is cut; else
// their connections end. Lose waits for that, and returns when it was. Whoever calls it then takes
// the pod from the API server.
func (k *Kubelet) Lose(ctx context.Context, uid string, silent bool) time.Time {
	l := &loss{silent: silent, at: make(chan time.Time, 1)}
	k.mu.Lock()
	k.lost[uid] = l
	k.mu.Unlock()
	select {
	case at := <-l.at:
		return at
	case <-ctx.Done():
		return time.Now()
	}
}

// look brings processes to what the API server has of their pods.
func (k *Kubelet) look(ctx context.Context) error {
	var list corev1.PodList
	if err := k.api.List(ctx, &list); err != nil {
		return err
	}
	known := map[string]bool{}
	for i := range list.Items {
		known[string(list.Items[i].UID)] = true
	}
	for uid, p := range k.pods {
		if !known[uid] { // somebody has taken it away by force
			p.signal(syscall.SIGKILL)
			delete(k.pods, uid)
		}
	}
	var errs []error
	for i := range list.Items {
		errs = append(errs, k.advance(ctx, &list.Items[i]))
	}
	return errors.Join(errs...)
}

// advance does the next thing for one pod.
func (k *Kubelet) advance(ctx context.Context, p *corev1.Pod) error {
	uid := string(p.UID)
	run := k.pods[uid]
	k.mu.Lock()
	lost := k.lost[uid]
	k.mu.Unlock()
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	switch {
	case lost != nil:
		return nil
	case p.DeletionTimestamp != nil && (run == nil || run.hasEnded()):
		if run != nil && !ended {
			if err := k.reportEnd(ctx, p, run); err != nil {
				return err
			}
		}
		now := int64(0)
		return client.IgnoreNotFound(k.api.Delete(ctx, p,
			&client.DeleteOptions{GracePeriodSeconds: &now}))
	case p.DeletionTimestamp != nil:
		run.ask(p)
		return nil
	case run == nil && !ended:
		return k.start(ctx, p)
	case run != nil && run.hasEnded() && !ended:
		return k.reportEnd(ctx, p, run)
	}
	return nil
}

// loseAll ends what Lose was called for, also while the API server is away.
func (k *Kubelet) loseAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid, l := range k.lost {
		k.lose(uid, k.pods[uid], l)
	}
}

// lose ends the process of a pod, nil = none, as with its node.
func (k *Kubelet) lose(uid string, run *process, l *loss) {
	if l.done {
		return
	}
	l.done = true
	now := time.Now()
	switch {
	case run == nil:
	case l.silent:
		run.signal(syscall.SIGSTOP)
		k.silent = append(k.silent, run)
	default:
		run.signal(syscall.SIGKILL)
		<-run.done
	}
	delete(k.pods, uid) // others must not find it any more
	l.at <- now
}

// ask asks a process to end, and kills it when its time is over.
func (p *process) ask(pod *corev1.Pod) {
	if p.term.IsZero() {
		p.term = time.Now()
		p.signal(syscall.SIGTERM)
	}
	if g := pod.DeletionGracePeriodSeconds; g != nil &&
		time.Since(p.term) > time.Duration(*g)*time.Second {
		p.signal(syscall.SIGKILL)
	}
}

// signal sends a signal to a process that has not ended.
func (p *process) signal(s syscall.Signal) {
	if !p.hasEnded() {
		_ = p.cmd.Process.Signal(s)
	}
}

// hasEnded reports whether a process has ended.
func (p *process) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// start binds a pod to the node of this kubelet and starts its process.
func (k *Kubelet) start(ctx context.Context, p *corev1.Pod) error {
	if p.Spec.NodeName == "" {
		if err := k.bind(ctx, p); err != nil {
			return err
		}
	}
	number := k.next
	k.next++
	// so that tests of several processes do not meet
	ip := fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, number/200, number%200+1)
	run := &process{pod: p.DeepCopy(), ip: ip, done: make(chan struct{})}
	replace, err := k.mount(ctx, p, run)
	if err != nil {
		return err
	}
	c := p.Spec.Containers[0]
	env := map[string]string{}
	for _, v := range c.Env {
		switch {
		case v.ValueFrom == nil || v.ValueFrom.FieldRef == nil:
			env[v.Name] = replace(v.Value)
		case v.ValueFrom.FieldRef.FieldPath == "metadata.name":
			env[v.Name] = p.Name
		case v.ValueFrom.FieldRef.FieldPath == "status.podIP":
			env[v.Name] = run.ip
		}
	}
	var words []string
	for _, word := range append(append([]string{}, c.Command...), c.Args...) {
		word = variable.ReplaceAllStringFunc(word, func(text string) string {
			if value, set := env[text[2:len(text)-1]]; set {
				return value
			}
			return text
		})
		words = append(words, k.resolve(replace(word), run))
	}
	run.cmd = exec.Command(words[0], words[1:]...)
	run.cmd.Env = append(os.Environ(), k.env...)
	sockets := filepath.Join(k.dir, fmt.Sprint("r", number)) // short, as names of sockets must be
	if err := os.MkdirAll(sockets, 0o700); err != nil {
		return err
	}
	run.cmd.Env = append(run.cmd.Env, "XDG_RUNTIME_DIR="+sockets)
	for name, value := range env {
		run.cmd.Env = append(run.cmd.Env, name+"="+value)
	}
	return k.launch(ctx, p, run)
}

// launch starts the process of a pod with its output in a file, and reports that.
func (k *Kubelet) launch(ctx context.Context, p *corev1.Pod, run *process) error {
	log, err := os.Create(filepath.Join(k.dir, p.Name+".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	run.cmd.Stdout, run.cmd.Stderr = log, log
	run.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := run.cmd.Start(); err != nil {
		p.Status.Phase, p.Status.Message = corev1.PodFailed, err.Error()
		return k.api.Status().Update(ctx, p)
	}
	k.pods[string(p.UID)] = run
	k.ends.Go("pod "+p.Name, func(context.Context) error {
		defer close(run.done)
		_ = run.cmd.Wait() // reportEnd looks at its state
		return nil
	})
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, run.ip
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name,
		Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{
			StartedAt: metav1.Now()}}}}
	return k.api.Status().Update(ctx, p)
}

// variable finds what Kubernetes replaces in arguments.
var variable = regexp.MustCompile(`\$\(([A-Za-z0-9_]+)\)`)

// mount writes the Secrets of a pod into files and makes its empty folders. It returns how paths in
// the container become paths here.
func (k *Kubelet) mount(ctx context.Context, p *corev1.Pod, run *process) (func(string) string,
	error) {
	root := filepath.Join(k.dir, p.Name)
	if err := os.RemoveAll(root); err != nil { // of an earlier pod of that name
		return nil, err
	}
	c := p.Spec.Containers[0]
	run.end = filepath.Join(root, c.TerminationMessagePath)
	paths := []string{c.TerminationMessagePath, run.end}
	if err := os.MkdirAll(filepath.Dir(run.end), 0o700); err != nil {
		return nil, err
	}
	for _, m := range c.VolumeMounts {
		for _, v := range p.Spec.Volumes {
			if v.Name != m.Name || v.Projected == nil && v.EmptyDir == nil {
				continue
			}
			at := filepath.Join(root, m.MountPath)
			paths = append(paths, m.MountPath, at)
			if err := os.MkdirAll(at, 0o700); err != nil {
				return nil, err
			}
			if v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if err := k.writeSecret(ctx, p.Namespace, source.Secret.Name, at); err != nil {
					return nil, err
				}
			}
		}
	}
	return strings.NewReplacer(paths...).Replace, nil
}

// writeSecret writes a Secret into a folder.
func (k *Kubelet) writeSecret(ctx context.Context, namespace, name, folder string) error {
	var s corev1.Secret
	if err := k.api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &s); err != nil {
		return err
	}
	for file, text := range s.Data {
		if err := os.WriteFile(filepath.Join(folder, file), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// service finds the name of a Service in an argument.
var service = regexp.MustCompile(`^([a-z0-9-]+)\.([a-z0-9-]+)\.svc(:[0-9]+)$`)

// resolve does for an argument what the DNS of a cluster does: the name of a Service becomes the
// address of a pod of the job that runs.
func (k *Kubelet) resolve(word string, asks *process) string {
	m := service.FindStringSubmatch(word)
	if m == nil {
		return word
	}
	var best *process
	for _, p := range k.pods {
		if p.hasEnded() || !p.term.IsZero() || p.pod.Namespace != m[2] ||
			p.pod.Labels["shoal-ml.github.io/job"] != m[1] || p == asks {
			continue
		}
		if best == nil || p.pod.CreationTimestamp.Before(&best.pod.CreationTimestamp) {
			best = p
		}
	}
	if best == nil {
		return word
	}
	return best.ip + m[3]
}

// reportEnd reports how the process of a pod has ended.
func (k *Kubelet) reportEnd(ctx context.Context, p *corev1.Pod, run *process) error {
	text, _ := os.ReadFile(run.end) // one that was killed has written nothing
	code := run.cmd.ProcessState.ExitCode()
	if w := run.cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
		code = 128 + int(w.Signal())
	}
	p.Status.Phase = corev1.PodSucceeded
	if code != 0 {
		p.Status.Phase = corev1.PodFailed
	}
	p.Status.PodIP = run.ip
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: p.Spec.Containers[0].Name,
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: int32(code), Message: string(text), FinishedAt: metav1.Now()}}}}
	return client.IgnoreNotFound(k.api.Status().Update(ctx, p))
}
