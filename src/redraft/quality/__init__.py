"""The measurement model: what noisy scores say about the true quality of answers.

Pure: no clock, no randomness, no I/O. All quantities are in points of the score, and all distributions are normal. In
symbols, with the names of `Priors` on the right (all standard deviations are squared to variances):

    l  ~ N(m, s_l^2)                       task level            m = draft_mean, s_l = draft_mean_sd
    g  ~ N(g0, s_g^2)                      gain of the task      g0 = gain, s_g = gain_sd
    q_i = l + e                            first draft           e ~ N(0, draft_sd^2)
    q_i = g + r q_parent + e               refinement            r = retention, e ~ N(0, step_sd^2)
    q_i = q_parent + e                     editor's repair       e ~ N(0, REPAIR_SD^2)
    b_i ~ N(0, bias_sd^2 S)                bias for a draft      S = sum_k share_k^2
    b_i = d + h b_parent + e               bias for a refinement d = bias_drift, h = bias_inheritance,
                                                                 e ~ N(0, (1 - h^2) bias_sd^2 S)
    y_i = q_i + b_i + e                    score                 e ~ N(0, noise_sd^2 w_i)
    w_i = sum_k share_k^2 / repeats_ik     noise weight

`share_k` is the share of LLM grader k in the weighted score, `repeats_ik` how often it graded text i. Graders that call
no model have neither noise nor bias. With K = Cov(y) = L L' (Cholesky) the posterior is

    alpha = K^-1 (y - E[y]),  E[q | y] = E[q] + Cov(q, y) alpha,  Cov[q | y] = Cov(q) - Cov(q, y) K^-1 Cov(y, q)

and a step that moves the difference between a candidate and the incumbent, now d, by a normal amount of standard
deviation s is worth the knowledge gradient  s phi(d / s) + d Phi(d / s)  (`expected_improvement`).

Worked numbers, for one judge with the shipped priors (checked by a test):

- one draft scored 0.70: Var y = 0.15^2 + 0.11^2 + 0.06^2 + 0.12^2 = 0.0526, weight of the score (0.15^2 + 0.11^2) / 0.0526
  = 0.658, posterior mean 0.58 + 0.658 * 0.12 = 0.659, standard deviation sqrt(0.0346 * (1 - 0.658)) = 0.109;
- the same draft scored 0.70 three times: Var y = 0.0526 - 2/3 * 0.12^2 = 0.043, posterior mean 0.677;
- a step with d = -0.05 and s = 0.10 is worth 0.1 phi(-0.5) - 0.05 Phi(-0.5) = 0.0198.

Approximations: scores are clipped to [0, 1] but modelled without bounds; several scores of one text enter as their mean;
musts (0 or 1) are ignored; a step is valued against one rival only; bias drift and inheritance are never learned, because
without human labels they cannot be told apart from quality.
"""
