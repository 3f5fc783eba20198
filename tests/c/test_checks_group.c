/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CHECKs of matchmaking, groups and gossip buffers do see what they are there for:
 * each case breaks something that a function relies on, in a process of its own, which
 * has to end by a CHECK of the file that is named. (Many are seen to fire by
 * tests/mutants.py as well; those of group_object.c and group_create.c
 * need an MPI.)
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "check.h"
#include "gossip/accumulator.h"
#include "gossip/register.h"
#include "gossip/queue.h"
#include "group/group_agent.c" /* Their CHECKs are in static functions. */
#include "group/group_wire.c"
#include "protocol/group/matchmaking.c"
#include "protocol/group/grid.h"

enum { RANKS = 3, FIRED = 7 };

/* A rank of three as far as it has to be there, this one 0. */

static struct match match;
static struct group group;
static struct window window = {.rank = 0, .size = RANKS};
static struct membership_entry entries[RANKS];
static struct gossip_memory memory;

static void make_match(void)
{
    struct match_goal goal = {
        .round = 5, .key = 1, .max_members = RANKS, .window = 1000};
    EXPECT_OK(match_init(&match, 0, RANKS, 100));
    match_begin(&match, 0, &goal);
}

static void make_group(enum group_phase phase)
{
    group.phase = phase;
    group.window = &window;
    group.grid = (struct grid){.axes = 1, .side = {RANKS}};
    group.membership = (struct membership){entries, RANKS};
    EXPECT_OK(match_init(&group.match, 0, RANKS, 100));
}

static void make_memory(void)
{
    memory.window = &window;
    memory.layout = (struct gossip_layout){
        .ranks = RANKS, .count = 10, .chunk = LATTICE_BLOCK, .queue_slots = 1};
}

/* Grids, shares, membership, decisions. */

static const struct grid small = {.axes = 2, .side = {2, 2}};

static void coordinate_on_no_axis(void)
{
    grid_coordinate(&small, 0, 2);
}

static void line_of_no_cell(void)
{
    grid_line(&small, 4, 0);
}

static void move_beyond_a_side(void)
{
    grid_move(&small, 0, 0, 2);
}

static void chunk_of_no_member(void)
{
    grid_chunk(&small, 4, 0, 0, 2, 2);
}

static void grid_without_axes(void)
{
    grid_axis(&(struct grid){.axes = 0}, 0);
}

static void cells_without_axes(void)
{
    grid_cells(&(struct grid){.axes = 0});
}

static void no_shares(void)
{
    double share = 0;
    uint64_t bound[2];
    grid_bounds(&share, 1, 10, 1, bound);
}

static void status_of_no_rank(void)
{
    make_group(PHASE_IDLE);
    membership_set(&group.membership, RANKS, MEMBER_AWAY, 0);
}

static void join_of_no_rank(void)
{
    make_group(PHASE_IDLE);
    membership_join(&group.membership, RANKS, 0, 1);
}

static void others_of_no_rank(void)
{
    make_group(PHASE_IDLE);
    membership_others(&group.membership, RANKS);
}

/* Matchmaking. */

static void message_to_itself(void)
{
    make_match();
    match_send(&match, MATCH_LEAVE, 0, 5, &(struct match_note){.attempt = 1});
}

static void part_of_no_list(void)
{
    match_part_holds(&(struct match_message){.kind = MATCH_ASK});
}

static void member_beyond_a_part(void)
{
    match_put_member(&(struct match_message){.kind = MATCH_LIST}, 2,
                     &(struct match_member){0});
}

static void outbox_overrun(void)
{
    struct match_message out;
    make_match();
    match.out.head = 1;
    match_next(&match, &out);
}

static void refusal_by_nobody(void)
{
    make_match();
    match_refuse(&match, RANKS, 1, 1);
}

static void refusals_that_are_not_there(void)
{
    struct match_refusal out;
    make_match();
    match.refusals = 1;
    match_refused(&match, &out);
}

static void withdraw_from_nothing(void)
{
    make_match();
    match.state = MATCH_FORMED;
    match_withdraw(&match);
}

static void dismissal_of_itself(void)
{
    make_match();
    match_dismiss(&match, 0, 0);
}

static void follower_that_is_not_there(void)
{
    make_match();
    match.peers[1].follower = FOLLOWER_IN;
    match_drop_lost_follower(&match, 1);
}

static void more_unconfirmed_than_followers(void)
{
    make_match();
    match.unconfirmed = 1;
    match_expect(&match, 1, 2);
}

static void follows_nobody(void)
{
    make_match();
    match.state = MATCH_FOLLOWING;
    match.follow_by = INT64_MAX;
    match_tick(&match, 1);
}

static void asks_while_it_follows(void)
{
    make_match();
    match.state = MATCH_FOLLOWING;
    match.leader = match.asking = 1;
    match_expect(&match, 1, 2);
}

/* Groups. */

static void sent_to_itself(void)
{
    make_group(PHASE_ROUND);
    group_wire_send(&group, 0, WIRE_NUDGE, 0, 0, (union group_values){.word = {0}});
}

static void sent_about_no_group(void)
{
    make_group(PHASE_ROUND);
    group_wire_send_notice(&group, 1, (struct group_name){1, 0}, NOTICE_PASS, 0);
}

static void received_from_itself(void)
{
    make_group(PHASE_ROUND);
    group_agent_on_message(&group.base, 0, &(struct control){.kind = WIRE_NUDGE});
}

static void far_vote_that_opens(void)
{
    enum decision decision;
    make_group(PHASE_ROUND);
    group_window_vote(&group, (struct group_name){1, 1}, VOTE_OPEN, 2, &decision);
}

static void served_what_nobody_asked_for(void)
{
    make_group(PHASE_MATCHING);
    group_window_serve(&group, &(struct group_message){.kind = WIRE_NUDGE});
}

static void suspects_itself(void)
{
    make_group(PHASE_ROUND);
    group_wire_suspect(&group, 0);
}

static void own_membership_changed_by_others(void)
{
    make_group(PHASE_ROUND);
    group_wire_membership_changed(&group, 0);
}

static void inquiry_waits_with_static_keys(void)
{
    make_group(PHASE_MATCHING);
    group.inquiry.waits = true;
    group_matching_alarm(&group);
}

static void matching_while_away(void)
{
    make_group(PHASE_MATCHING);
    group.membership.entries[0].status = MEMBER_AWAY;
    group_matching_begin(&group);
}

static void match_messages_lost(void)
{
    make_group(PHASE_MATCHING);
    group.match.out.lost = 1;
    group_matching_flush(&group);
}

static void left_in_a_round(void)
{
    make_group(PHASE_ROUND);
    group_agent_leave(&group);
}

static void back_in_an_earlier_round(void)
{
    make_group(PHASE_ASKING);
    group.round = 3;
    group_agent_round_to_join(&group);
}

static void bandwidth_below_0(void)
{
    make_group(PHASE_ROUND);
    group_round_set_bandwidth(&group, -1);
}

static void round_outside_a_round(void)
{
    enum group_phase next;
    make_group(PHASE_IDLE);
    group_round_continue(&group, &next);
}

static void notice_to_no_member(void)
{
    make_group(PHASE_ROUND);
    group_round_notify(&group, 1, 0);
}

static void votes_done_before_it_is(void)
{
    make_group(PHASE_ROUND);
    group_round_vote(&group, VOTE_DONE);
}

static void vote_for_another_leader(void)
{
    make_group(PHASE_ROUND);
    group_round_on_vote(
        &group,
        &(struct group_message){
            .source = 1, .values = {.name = {1, 1}, .vote = VOTE_DONE, .members = 2}});
}

static void heartbeat_outside_a_round(void)
{
    make_group(PHASE_IDLE);
    group_round_heartbeat(&group);
}

static void finished_undecided(void)
{
    make_group(PHASE_ROUND);
    group_round_finish(&group);
}

static void counts_without_its_vote(void)
{
    make_group(PHASE_ROUND);
    group.now.decision = DECISION_COMMIT;
    group_round_finish(&group);
}

static void queued_without_closing(void)
{
    group.queued = true;
    group_agent_drive(&group.base);
}

static void closed_before_it_has_left(void)
{
    group.queued = true;
    group_agent_begin_close(&group.base);
}

static void disposed_while_driven(void)
{
    group.driven = true;
    group_object_dispose(&group);
}

static void attached_to_a_smaller_window(void)
{
    make_group(PHASE_IDLE);
    window.size = RANKS - 1;
    group_object_attach(&group);
}

static void voted_at_no_rank(void)
{
    enum decision decision;
    make_group(PHASE_ROUND);
    group_window_vote(&group, (struct group_name){RANKS, 1}, VOTE_DONE, 2, &decision);
}

static struct group_data round_of_two = {.group = {.members = 2}, .max_members = 2};

static void input_of_no_member(void)
{
    group_data_input(&round_of_two, 2, true);
}

static void part_of_no_member(void)
{
    group_data_part(&round_of_two, 2);
}

static void waits_for_input_of_no_member(void)
{
    group_data_waits_for_input(&round_of_two, 2);
}

static void waits_for_part_of_no_member(void)
{
    group_data_waits_for_part(&round_of_two, 2);
}

static void run_before_it_is_prepared(void)
{
    group_data_run(&round_of_two);
}

static void started_before_it_is_prepared(void)
{
    group_data_start(&round_of_two, true);
}

static void ended_before_it_is_prepared(void)
{
    group_data_end(&round_of_two);
}

static void polled_after_its_end(void)
{
    bool ended;
    round_of_two.under_way = 1;
    group_data_poll(&round_of_two, &ended);
}

static void prepared_without_its_place(void)
{
    round_of_two.group.position = 2;
    group_data_prepare(&round_of_two);
}

static void bytes_of_nothing(void)
{
    group_data_bytes(&round_of_two);
}

static void made_without_a_window(void)
{
    static const struct dtype none;
    round_of_two.dtype = &none;
    group_data_init(&round_of_two);
}

static void destroyed_under_way(void)
{
    round_of_two.under_way = 1;
    group_data_destroy(&round_of_two);
}

/* Gossip buffers. */

static void reserved_at_itself(void)
{
    int64_t uncollected;
    int32_t reserved;
    make_memory();
    accumulator_reserve(&memory, 0, 1, &uncollected, &reserved);
}

static void added_within_a_chunk(void)
{
    make_memory();
    accumulator_add_chunk(&memory, 1, 1);
}

static void added_to_itself(void)
{
    make_memory();
    accumulator_add_chunk(&memory, 0, 0);
}

static void looked_within_a_chunk(void)
{
    make_memory();
    accumulator_query(&memory, 0, 1);
}

static void read_before_it_is_published(void)
{
    uint64_t version = 0;
    bool whole;
    make_memory();
    register_read_chunk(&memory, 1, 0, NULL, &version, &whole);
}

static void pushed_to_no_rank(void)
{
    int32_t pushed;
    make_memory();
    queue_push(&memory, RANKS, NULL, NULL, NULL, &pushed);
}

static void fetched_from_no_rank(void)
{
    struct gossip_fetched fetched;
    make_memory();
    slot_fetch_chunk(&memory, RANKS, 0, 0, NULL, NULL, &fetched);
}

static void memory_for_part_of_a_block(void)
{
    make_memory();
    memory.layout.chunk = LATTICE_BLOCK / 2;
    (void)!gossip_memory_init(&memory);
}

#define CASE(file, name) {file, #name, name}

static const struct {
    const char *file, *name;
    void (*run)(void);
} cases[] = {
    CASE("protocol/group/grid.c", coordinate_on_no_axis),
    CASE("protocol/group/grid.c", line_of_no_cell),
    CASE("protocol/group/grid.c", move_beyond_a_side),
    CASE("protocol/group/grid.c", chunk_of_no_member),
    CASE("protocol/group/grid.c", grid_without_axes),
    CASE("protocol/group/grid.c", cells_without_axes),
    CASE("protocol/group/grid.c", no_shares),
    CASE("group/group_wire.c", status_of_no_rank),
    CASE("group/group_wire.c", join_of_no_rank),
    CASE("group/group_wire.c", others_of_no_rank),
    CASE("protocol/group/matchmaking.c", message_to_itself),
    CASE("protocol/group/matchmaking.c", part_of_no_list),
    CASE("protocol/group/matchmaking.c", member_beyond_a_part),
    CASE("protocol/group/matchmaking.c", outbox_overrun),
    CASE("protocol/group/matchmaking.c", refusal_by_nobody),
    CASE("protocol/group/matchmaking.c", refusals_that_are_not_there),
    CASE("protocol/group/matchmaking.c", withdraw_from_nothing),
    CASE("protocol/group/matchmaking.c", dismissal_of_itself),
    CASE("protocol/group/matchmaking.c", follower_that_is_not_there),
    CASE("protocol/group/matchmaking.c", more_unconfirmed_than_followers),
    CASE("protocol/group/matchmaking.c", follows_nobody),
    CASE("protocol/group/matchmaking.c", asks_while_it_follows),
    CASE("group/group_wire.c", sent_to_itself),
    CASE("group/group_wire.c", sent_about_no_group),
    CASE("group/group_agent.c", received_from_itself),
    CASE("group/group_wire.c", far_vote_that_opens),
    CASE("group/group_wire.c", served_what_nobody_asked_for),
    CASE("group/group_wire.c", suspects_itself),
    CASE("group/group_wire.c", own_membership_changed_by_others),
    CASE("group/group_agent.c", inquiry_waits_with_static_keys),
    CASE("group/group_agent.c", matching_while_away),
    CASE("group/group_agent.c", match_messages_lost),
    CASE("group/group_agent.c", left_in_a_round),
    CASE("group/group_agent.c", back_in_an_earlier_round),
    CASE("group/group_agent.c", bandwidth_below_0),
    CASE("group/group_agent.c", round_outside_a_round),
    CASE("group/group_agent.c", notice_to_no_member),
    CASE("group/group_agent.c", votes_done_before_it_is),
    CASE("group/group_agent.c", vote_for_another_leader),
    CASE("group/group_agent.c", heartbeat_outside_a_round),
    CASE("group/group_agent.c", finished_undecided),
    CASE("group/group_agent.c", counts_without_its_vote),
    CASE("group/group_agent.c", queued_without_closing),
    CASE("group/group_agent.c", closed_before_it_has_left),
    CASE("group/group_object.c", disposed_while_driven),
    CASE("group/group_object.c", attached_to_a_smaller_window),
    CASE("group/group_wire.c", voted_at_no_rank),
    CASE("group/group_data.c", input_of_no_member),
    CASE("group/group_data.c", part_of_no_member),
    CASE("group/group_data.c", waits_for_input_of_no_member),
    CASE("group/group_data.c", waits_for_part_of_no_member),
    CASE("group/group_data.c", run_before_it_is_prepared),
    CASE("group/group_data.c", started_before_it_is_prepared),
    CASE("group/group_data.c", ended_before_it_is_prepared),
    CASE("group/group_data.c", polled_after_its_end),
    CASE("group/group_data.c", prepared_without_its_place),
    CASE("group/group_data.c", bytes_of_nothing),
    CASE("group/group_data.c", made_without_a_window),
    CASE("group/group_data.c", destroyed_under_way),
    CASE("gossip/accumulator.c", reserved_at_itself),
    CASE("gossip/accumulator.c", added_within_a_chunk),
    CASE("gossip/accumulator.c", added_to_itself),
    CASE("gossip/accumulator.c", looked_within_a_chunk),
    CASE("gossip/register.c", read_before_it_is_published),
    CASE("gossip/queue.c", pushed_to_no_rank),
    CASE("gossip/register.c", fetched_from_no_rank),
    CASE("gossip/gossip_memory.c", memory_for_part_of_a_block),
};

/* In the child: it has fired. */
static void fired(void)
{
    fflush(stderr);
    _exit(FIRED);
}

static void run_case(size_t i)
{
    int ends[2], status;
    char said[512] = "";
    EXPECT(pipe(ends) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        check_hook = fired;
        cases[i].run();
        _exit(0);
    }
    close(ends[1]);
    for (size_t at = 0, n = 1; n && at < sizeof said - 1; at += n) {
        ssize_t got = read(ends[0], said + at, sizeof said - 1 - at);
        n = got > 0 ? (size_t)got : 0;
    }
    close(ends[0]);
    waitpid(child, &status, 0);
    bool by_check = WIFEXITED(status) && WEXITSTATUS(status) == FIRED;
    EXPECT(by_check && strstr(said, "invariant broken: check") &&
               strstr(said, cases[i].file),
           "%s: no CHECK of %s has fired (status %d): %s", cases[i].name, cases[i].file,
           status, said);
}

int main(void)
{
    size_t count = sizeof cases / sizeof *cases;
    for (size_t i = 0; i < count; i++)
        run_case(i);
    printf("checks of groups and gossip: all %zu have fired\n", count);
    return 0;
}
