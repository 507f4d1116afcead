package operator

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/deploy/kube/api/v1alpha1"
	"github.com/shoal-ml/shoal/deploy/kube/decide"
	"github.com/shoal-ml/shoal/internal/group"
)

// How the operator asks jobs, at the address of --status-listen in their pods.

// Asker asks the pods of jobs.
type Asker interface {
	// Ask returns what the job says of itself at the address of a pod. The error is errWaiting if
	// the pod waits for a job to join.
	Ask(ctx context.Context, ip, token string) (control.Job, error)
	// Park asks the job for a checkpoint after which its workers end.
	Park(ctx context.Context, ip, token string) error
	// Lost tells the pod at an address that a host of the job is gone.
	Lost(ctx context.Context, ip, token, host string) error
}

// errWaiting says that a pod waits for a job to join.
var errWaiting = errors.New("the pod waits for a job to join")

// HTTPAsker is an Asker that asks by HTTP.
type HTTPAsker struct{ client http.Client }

// patience is how long a pod may take to answer, and eager how long that which led the job last may
// take before others are asked: it may be silent because its node is lost.
const (
	patience = 3 * time.Second
	eager    = patience / 2
)

// maxAnswer bounds an answer, in bytes: that of a job of 1,024 workers has a quarter of it.
const maxAnswer = 2 << 20

// NewHTTPAsker returns an Asker that asks by HTTP. What answers at the address of a pod is whatever
// its image is: it is not followed to other addresses. No proxy gets the token.
func NewHTTPAsker() *HTTPAsker {
	return &HTTPAsker{http.Client{Timeout: patience,
		Transport: &http.Transport{MaxIdleConns: 100, IdleConnTimeout: time.Minute,
			MaxResponseHeaderBytes: 16 << 10},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		}}}
}

// askAtOnce is how many pods of a job are asked at a time.
const askAtOnce = 8

// told is what a job has said.
type told struct {
	live decide.Live
	job  control.Job
	ip   string // of the pod that has answered
	why  error  // why one that may train did not; nil = all that were asked did
}

// askable returns the addresses of the pods of the newest run that run, but for those that linger
// and those whose time to end is over. That which led the job last is the first.
func askable(j *v1alpha1.ShoalJob, pods []corev1.Pod, now time.Time) (at []string) {
	for _, p := range pods {
		if lingers(&p) || p.Status.Phase != corev1.PodRunning || p.Status.PodIP == "" ||
			p.Labels[labelRun] != strconv.Itoa(j.Status.Run) ||
			p.DeletionTimestamp != nil && !p.DeletionTimestamp.After(now) {
			continue
		}
		if at = append(at, p.Status.PodIP); p.Name == j.Status.Host {
			at[0], at[len(at)-1] = at[len(at)-1], at[0]
		}
	}
	return at
}

// ask asks the pods at addresses until that which leads the job answers: the first one, and if it
// does not, the others side by side. It takes up to twice patience, and when it returns nobody is
// asked any more. A pod that says that the job is stuck counts only if no other answers.
func (r *Reconciler) ask(ctx context.Context, at []string, token string) (t told) {
	ctx, stop := context.WithTimeout(ctx, 2*patience)
	defer stop()
	waiting := 0
	var mu sync.Mutex // guards t and waiting
	ask := func(ctx context.Context, i int) error {
		answer, err := r.Asker.Ask(ctx, at[i], token)
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, errWaiting):
			waiting++
		case err != nil:
			t.why = cmp.Or(t.why, err)
		case !t.live.Answers || t.job.State == control.Stuck:
			t = told{job: answer, ip: at[i], why: t.why, live: decide.Live{Answers: true,
				Early: answer.Generation == 0, Paused: answer.Paused, Mesh: answer.Mesh != "",
				Steps: int64(stepsOf(answer)), ParkedBy: answer.ParkedBy, Parked: answer.Parked,
				ParkError: answer.ParkError}}
			if answer.State != control.Stuck {
				stop()
			}
		}
		return nil
	}
	if len(at) > 0 {
		first, end := context.WithTimeout(ctx, eager)
		_ = ask(first, 0) // it never fails
		end()
	}
	if len(at) > 1 && ctx.Err() == nil {
		_ = group.Share(ctx, "asking a pod", askAtOnce, len(at)-1, func() func(int) error {
			return func(i int) error { return ask(ctx, i+1) }
		}) // it fails when ctx has ended
	}
	t.live.Waiting = len(at) > 0 && waiting == len(at)
	t.live.Silent = t.why != nil && !t.live.Answers
	t.live.Stuck = t.job.State == control.Stuck && t.why == nil // else others may go on
	return t
}

// Ask implements Asker.
func (a *HTTPAsker) Ask(ctx context.Context, ip, token string) (j control.Job, err error) {
	err = a.send(ctx, http.MethodGet, ip, control.PathJob, token, nil, &j)
	return j, err
}

// Park implements Asker.
func (a *HTTPAsker) Park(ctx context.Context, ip, token string) error {
	body, err := json.Marshal(control.Park{Who: "the operator, as the ShoalJob says"})
	if err != nil {
		return err
	}
	return a.send(ctx, http.MethodPost, ip, control.PathPark, token, body, nil)
}

// Lost implements Asker.
func (a *HTTPAsker) Lost(ctx context.Context, ip, token, host string) error {
	body, err := json.Marshal(control.Lost{Host: host, Who: "the operator"})
	if err != nil {
		return err
	}
	return a.send(ctx, http.MethodPost, ip, control.PathLost, token, body, nil)
}

// send sends a request and takes the answer into a value, if there is one.
func (a *HTTPAsker) send(ctx context.Context, method, ip, path, token string, body []byte,
	into any) error {
	url := "http://" + net.JoinHostPort(ip, strconv.Itoa(portStatus)) + path
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch {
	case err != nil:
		return err
	case answer.StatusCode == http.StatusNotFound:
		return errWaiting
	case answer.StatusCode != http.StatusOK:
		var refusal control.Error
		if json.Unmarshal(text, &refusal) == nil && refusal.Error != "" {
			return errors.New(refusal.Error)
		}
		return fmt.Errorf("%s", answer.Status)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}

// tellLost tells the pods at addresses, side by side, which members of the newest run have
// vanished, so that their silence counts sooner: a node that is only cut off from the API server
// speaks, and its pod stays in the job. A pod that somebody has only taken the labels from is still
// there, and nobody is told. Pods that do not answer, or have a version of shoal without this, find
// out by themselves.
func (r *Reconciler) tellLost(ctx context.Context, j *v1alpha1.ShoalJob, at []string,
	d decide.Decision, host, token string) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	for _, number := range d.Gone {
		name := podName(j, j.Status.Run, number)
		err := r.Fresh.Get(ctx, client.ObjectKey{Namespace: j.Namespace, Name: name},
			new(corev1.Pod))
		if !apierrors.IsNotFound(err) {
			continue
		}
		if number == 0 && host != "" && !strings.HasPrefix(host, j.Name+"-") {
			name = host // that which began the job has the name of its machine
		}
		_ = group.Share(ctx, "telling a pod", askAtOnce, len(at), func() func(int) error {
			return func(i int) error {
				_ = r.Asker.Lost(ctx, at[i], token, name)
				return nil
			}
		})
	}
}

// portNumber returns a port as objects have it.
func portNumber(n int) intstr.IntOrString { return intstr.FromInt(n) }
